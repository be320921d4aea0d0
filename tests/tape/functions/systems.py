"""Systems of equations and factorisations."""

from typing import Any

from tests.tape.functions._table import case, cnormal, hermitian, normal, spd

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

    def _rebuild(xp: Any, A: Any) -> Any:
        U, S, Vh = xp.linalg.svd(A, full_matrices=False)
        return (U * xp.astype(xp.expand_dims(S**2, axis=-2), U.dtype)) @ Vh

    for _shape in ((4, 3), (3, 4), (2, 3, 3)):
        case("linalg_svd", _rebuild, _make(*_shape))
case("linalg_svd", lambda xp, A: xp.linalg.svd(A).S, normal(3, 3))
case("linalg_qr", lambda xp, A: xp.linalg.qr(A, mode="complete").R, normal(3, 3))
