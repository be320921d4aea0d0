"""Products of matrices and vectors."""

from tests.tape.functions._table import SIGNED, case, cnormal, normal, spd

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
        oracle=lambda xp, a, b: (a.conj() * b).sum(-2),
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
        case("linalg_matrix_power", lambda xp, A, n=_n: xp.linalg.matrix_power(A, n), spd(1, 2, 3, 3, make=_make))
    for _offset in (0, 1, -1, 2):
        case("linalg_diagonal", lambda xp, A, k=_offset: xp.linalg.diagonal(A, offset=k), _make(2, 3, 4))
        case(
            "linalg_trace",
            lambda xp, A, k=_offset: xp.linalg.trace(A, offset=k),
            _make(2, 3, 4),
            oracle=lambda xp, A, k=_offset: A.diagonal(k, -2, -1).sum(-1),
        )
case("matmul", lambda xp, a, b: a @ b, normal(3, 4), cnormal(4, 2), oracle=lambda xp, a, b: a.to(b.dtype) @ b)
case("matmul", lambda xp, a: a @ xp.asarray(SIGNED.T.tolist(), dtype=a.dtype) @ a, SIGNED)
case("linalg_matmul", lambda xp, a, b: xp.linalg.matmul(a, b), normal(3, 4), normal(4, 2))
case("linalg_vecdot", lambda xp, a, b: xp.linalg.vecdot(a, b, axis=-1), normal(3, 4), normal(3, 4))
case("linalg_tensordot", lambda xp, a, b: xp.linalg.tensordot(a, b, axes=1), normal(3, 4), normal(4, 2))
case("linalg_matrix_transpose", lambda xp, a: xp.linalg.matrix_transpose(a), normal(2, 3, 4))
