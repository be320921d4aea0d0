"""Cases for products, linear algebra and Fourier transforms; see `cases`."""

from __future__ import annotations

import math

import numpy as np

from .cases import COMPLEX, SIGNED, case, cnormal, each, hermitian, normal, real, rng, spd

# ---------------------------------------------------------------------------------------------------- products

for _make in (normal, cnormal):
    for _a, _b in [
        ((3, 4), (4, 2)),
        ((4,), (4, 2)),
        ((3, 4), (4,)),
        ((4,), (4,)),
        ((2, 3, 4), (2, 4, 5)),
        ((2, 3, 4), (4, 5)),
        ((3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((4,), (2, 4, 3)),
        ((2, 3, 4), (4,)),
        ((3, 3), (3, 3)),
        ((3, 3), (3,)),
        ((3,), (3, 3)),
        ((1, 3, 3), (2, 3, 3)),
        ((5, 2, 3, 4), (4, 2)),
    ]:
        case("matmul", lambda xp, a, b: xp.matmul(a, b), _make(*_a), _make(*_b))
    for _options in ({}, {"axis": -1}):
        case("vecdot", lambda xp, a, b, o=_options: xp.vecdot(a, b, **o), _make(3, 4), _make(3, 4))
    case(
        "vecdot",
        lambda xp, a, b: xp.vecdot(a, b, axis=-2),
        _make(5, 3, 2),
        _make(3, 1),
        torch=lambda xp, a, b: (a.conj() * b).sum(-2),
    )
    case("vecdot", lambda xp, a, b: xp.vecdot(a, b), _make(4), _make(2, 4))
    for _axes in (1, 2, 0, ((0, 2), (1, 0)), ((-1,), (0,))):
        case(
            "tensordot",
            lambda xp, a, b, axes=_axes: xp.tensordot(a, b, axes=axes),
            _make(3, 2, 4) if _axes != 2 else _make(3, 4, 3),
            _make(4, 3, 2),
        )
    case("linalg_outer", lambda xp, a, b: xp.linalg.outer(a, b), _make(3), _make(4))
    case("linalg_cross", lambda xp, a, b: xp.linalg.cross(a, b), _make(4, 3), _make(4, 3))
    case("linalg_cross", lambda xp, a, b: xp.linalg.cross(a, b, axis=-2), _make(3, 2), _make(3, 2))
    case("linalg_cross", lambda xp, a, b: xp.linalg.cross(a, b), _make(2, 3), _make(1, 3))
    for _n in (3, 1, 0, -2):
        case("linalg_matrix_power", lambda xp, A, n=_n: xp.linalg.matrix_power(A, n), spd(2, 3, 3, make=_make))
    for _offset in (0, 1, -1, 2):
        case("linalg_diagonal", lambda xp, A, k=_offset: xp.linalg.diagonal(A, offset=k), _make(2, 3, 4))
        case(
            "linalg_trace",
            lambda xp, A, k=_offset: xp.linalg.trace(A, offset=k),
            _make(2, 3, 4),
            torch=lambda xp, A, k=_offset: A.diagonal(k, -2, -1).sum(-1),
        )
case("matmul", lambda xp, a, b: a @ b, normal(3, 4), cnormal(4, 2), torch=lambda xp, a, b: a.to(b.dtype) @ b)
case("matmul", lambda xp, a: a @ xp.asarray(SIGNED.T.tolist(), dtype=a.dtype) @ a, SIGNED)
case("linalg_matmul", lambda xp, a, b: xp.linalg.matmul(a, b), normal(3, 4), normal(4, 2))
case("linalg_vecdot", lambda xp, a, b: xp.linalg.vecdot(a, b, axis=-1), normal(3, 4), normal(3, 4))
case("linalg_tensordot", lambda xp, a, b: xp.linalg.tensordot(a, b, axes=1), normal(3, 4), normal(4, 2))
case("linalg_matrix_transpose", lambda xp, a: xp.linalg.matrix_transpose(a), normal(2, 3, 4))

# -------------------------------------------------------------------------------------- systems, factorisations

for _make in (normal, cnormal):
    S, BATCH = spd(3, 3, make=_make), spd(2, 3, 3, make=_make)
    case("linalg_solve", lambda xp, A, b: xp.linalg.solve(A, b), S, _make(3))
    case("linalg_solve", lambda xp, A, b: xp.linalg.solve(A, b), S, _make(3, 2))
    case("linalg_solve", lambda xp, A, b: xp.linalg.solve(A, b), BATCH, _make(2, 3, 4))
    case("linalg_solve", lambda xp, A, b: xp.linalg.solve(A, b), S, _make(2, 3, 4))
    case("linalg_solve", lambda xp, A, b: xp.linalg.solve(A, b), BATCH, _make(3, 4))
    case("linalg_solve", lambda xp, A: xp.linalg.solve(A, A @ A), S)
    case("linalg_inv", lambda xp, A: xp.linalg.inv(A), S)
    case("linalg_inv", lambda xp, A: xp.linalg.inv(A), BATCH)
    case("linalg_det", lambda xp, A: xp.linalg.det(A), S)
    case("linalg_det", lambda xp, A: xp.linalg.det(A), BATCH)
    case("linalg_det", lambda xp, A: xp.linalg.det(A), _make(3, 3))
    case("linalg_slogdet", lambda xp, A: xp.linalg.slogdet(A).logabsdet, BATCH)
    case("linalg_slogdet", lambda xp, A: xp.linalg.slogdet(A)[1], _make(3, 3))
    case("linalg_slogdet", lambda xp, A: tuple(xp.linalg.slogdet(A)), _make(3, 3))
    case("linalg_slogdet", lambda xp, A: xp.linalg.slogdet(A).sign, _make(3, 3))
    for _shape in ((4, 3), (3, 4), (2, 5, 3), (3, 3)):
        case("linalg_pinv", lambda xp, A: xp.linalg.pinv(A), _make(*_shape))
    for _upper in (False, True):
        case("linalg_cholesky", lambda xp, A, u=_upper: xp.linalg.cholesky(hermitian(xp, A), upper=u), S)
        case("linalg_cholesky", lambda xp, A, u=_upper: xp.linalg.cholesky(hermitian(xp, A), upper=u), BATCH)
    case("linalg_eigvalsh", lambda xp, A: xp.linalg.eigvalsh(hermitian(xp, A)), BATCH)
    case("linalg_eigh", lambda xp, A: xp.linalg.eigh(hermitian(xp, A)).eigenvalues, S)
    case("linalg_eigh", lambda xp, A: xp.abs(xp.linalg.eigh(hermitian(xp, A))[1]) ** 2, BATCH)
    for _shape in ((4, 3), (3, 3), (2, 4, 2), (3, 5), (2, 2, 4)):
        # phases of complex factors are free: LAPACK and Torch agree on them, so the factors may be compared here
        case("linalg_qr", lambda xp, A: tuple(xp.linalg.qr(A)), _make(*_shape))
        case("linalg_qr", lambda xp, A: xp.linalg.qr(A).R, _make(*_shape))
        case("linalg_qr", lambda xp, A: xp.linalg.qr(A).Q, _make(*_shape))
        case("linalg_svdvals", lambda xp, A: xp.linalg.svdvals(A), _make(*_shape))
        for _part in (0, 2):
            case(
                "linalg_svd",
                lambda xp, A, i=_part: xp.abs(xp.linalg.svd(A, full_matrices=False)[i]) ** 2,
                _make(*_shape),
            )

    def rebuild(xp, A):
        U, S, Vh = xp.linalg.svd(A, full_matrices=False)
        return (U * xp.astype(xp.expand_dims(S**2, axis=-2), U.dtype)) @ Vh

    for _shape in ((4, 3), (3, 4), (2, 3, 3)):
        case("linalg_svd", rebuild, _make(*_shape))
case("linalg_svd", lambda xp, A: xp.linalg.svd(A).S, normal(3, 3))
case("linalg_qr", lambda xp, A: xp.linalg.qr(A, mode="complete").R, normal(3, 3))

# ------------------------------------------------------------------------------------------------------- norms

for _x in (SIGNED, COMPLEX):
    for _ord in (2, 1, math.inf, -math.inf, 3, 1.5, -1, 0.5):
        for _options in ({}, {"axis": 1}, {"axis": 0, "keepdims": True}, {"axis": (0, 1)}):
            each("linalg_vector_norm", [{**_options, "ord": _ord}], _x)
    for _ord in ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf):
        each("linalg_matrix_norm", [{"ord": _ord}, {"ord": _ord, "keepdims": True}], np.stack([_x, 2 * _x[::-1]]))
each("linalg_matrix_norm", [{}], SIGNED)
each("linalg_vector_norm", [{}], normal(2, 3, 4))
each("linalg_vector_norm", [{"ord": 0}], np.array([0.0, 1.0, 2.0]), smooth=False)
ORIGIN = np.zeros((2, 3))
for _ord in (1, 2, math.inf, 3, 1.5):
    each("linalg_vector_norm", [{"axis": 1, "ord": _ord}, {"ord": _ord}], ORIGIN, smooth=False)
each("linalg_vector_norm", [{"axis": 1, "ord": 3}], np.array([[0.0, 1.0, -2.0], [0.0, 0.0, 0.0]]), smooth=False)
each("linalg_matrix_norm", [{"ord": "fro"}, {"ord": 1}, {"ord": math.inf}], ORIGIN, smooth=False)

# ----------------------------------------------------------------------------------------------------- Fourier

NORMS = ("backward", "ortho", "forward")
REFUSED = {"strict": "complex input only"}
for _norm in NORMS:
    for _n in (None, 3, 7):
        for _axis in (-1, 0):
            _options = {"n": _n, "axis": _axis, "norm": _norm}
            for _name in ("fft_fft", "fft_ifft"):
                each(_name, [_options], cnormal(4, 5))
            each("fft_rfft", [_options], normal(4, 5))
            each("fft_irfft", [_options], cnormal(4, 5))
    each("fft_hfft", [{"norm": _norm}, {"n": 5, "axis": 0, "norm": _norm}], cnormal(4, 5))
    each("fft_ihfft", [{"norm": _norm}, {"n": 4, "axis": 0, "norm": _norm}], normal(4, 5))
    for _name, _make in (("fft_fftn", cnormal), ("fft_ifftn", cnormal), ("fft_rfftn", normal), ("fft_irfftn", cnormal)):
        each(_name, [{"norm": _norm}, {"axes": (2, 0), "norm": _norm}, {"axes": (1,), "norm": _norm}], _make(2, 3, 4))
        each(
            _name,
            [{"s": (4, 2), "axes": (0, 1), "norm": _norm}, {"s": (2, 5), "axes": (0, -1), "norm": _norm}],
            _make(3, 4, 4),
        )
for _name in ("fft_fft", "fft_ifft"):
    each(_name, [{}], normal(5), skip=REFUSED)
for _name in ("fft_fftn", "fft_ifftn"):
    each(_name, [{"axes": (0, 1)}], normal(4, 5), skip=REFUSED)
each("fft_irfft", [{}, {"n": 6}], normal(5), skip=REFUSED)
case("fft_rfft", lambda xp, x: xp.fft.irfft(xp.fft.rfft(x) * xp.conj(xp.fft.rfft(x)) ** 2, n=5), normal(5))
case("fft_fft", lambda xp, x: real(xp, xp.fft.fft(xp.astype(x, xp.complex128))), normal(2, 6))
for _name in ("fft_fftshift", "fft_ifftshift"):
    each(_name, [{}, {"axes": 0}, {"axes": (0, 1)}], rng.normal(size=(4, 5)))
