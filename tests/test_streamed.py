"""Rows in chunks: the same function as with all rows in memory, one chunk of them alive, and chunks named if wrong."""

import gc
import time
import tracemalloc
from contextlib import nullcontext

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.driver.prepare import prepare
from xvarpro.errors import ModelError, ProblemError

from .support import BACKENDS, Watched, decays, error, rng, send_tree

T_L, T_U = np.linspace(0.0, 2.0, 24), np.linspace(0.1, 1.9, 15)
Y_L, Y_U = rng(0).normal(size=24), rng(1).normal(size=15)
MANY_L, MANY_U = rng(2).normal(size=(24, 5)), rng(3).normal(size=(15, 5))
OMEGA = np.eye(3) + 0.3 * rng(4).normal(size=(3, 3))
RATES = np.array([0.7, 2.0, 4.5])
NETWORK = {"s": np.array([0.5, 1.0, 1.5]), "layer": [rng(5).normal(size=(2, 3)), rng(6).normal(size=3)]}
X = rng(7).normal(size=(24, 2))


def moving(theta, t):
    xp = xv.array_namespace(theta)
    return xp.sin(t * xp.sum(theta))


def energy(theta):
    return xv.array_namespace(theta).sum(theta**4)


def network(theta, x):
    xp = xv.array_namespace(theta)
    (A, b), s = theta["layer"], theta["s"]
    return xp.tanh(x @ A + b) * s


def pair(M, data, y, rows=7, lam=0.0, Omega=None, solver=None):
    """One level in memory, which looks up its data under a key, and the same one in chunks."""

    def whole(key):
        target = (lambda theta, d: y(theta, d[key])) if callable(y) else y
        return xv.Level(lambda theta, d: M(theta, d[key]), target, lam, Omega, solver)

    return whole, xv.Level(M, xv.RowChunks.cut(data, y, rows), lam, Omega, solver), data


def separable(M=decays, data=T_L, y=Y_L, rows=7, R=None, mu=0.0, **level):
    whole, part, data = pair(M, data, y, rows, **level)
    return xv.Problem(whole("L"), None, R, mu, {"L": data}), xv.Problem(part, None, R, mu)


def bilevel(lower=None, upper=None, kept="", **keywords):
    """`kept`: the level that stays in memory."""
    lower, upper = lower or pair(decays, T_L, Y_L, lam=0.05), upper or pair(decays, T_U, Y_U, rows=4)
    data = {"L": lower[2], "U": upper[2]}
    whole = {"lower": lower[0]("L"), "upper": upper[0]("U")}
    part = {"lower": lower[1], "upper": upper[1]}
    mixed = part | {name: level for name, level in whole.items() if name == kept}
    return xv.bilevel(**whole, data=data, **keywords), xv.bilevel(**mixed, data=data if kept else None, **keywords)


lower_many, upper_many = pair(decays, T_L, MANY_L, lam=0.1), pair(decays, T_U, MANY_U, rows=4)
lower_moving, upper_moving = pair(decays, T_L, moving, lam=0.1), pair(decays, T_U, moving, rows=4)

COMPLEX = {"data": (1 + 0.5j) * T_L, "y": Y_L + 1j * MANY_L[:, 0], "lam": 0.1, "Omega": OMEGA + 0.5j * OMEGA[::-1]}

# name -> ((in memory, in chunks), theta); the last chunk of each is shorter
CASES = {
    "separable": (separable(), RATES),
    "separable one chunk": (separable(rows=100), RATES),
    "separable chunks shorter than w": (separable(rows=2), RATES),
    "separable penalty": (separable(R=energy, mu=0.3), RATES),
    "separable moving target": (separable(y=moving, lam=0.1), RATES),
    "separable many targets": (separable(y=MANY_L, lam=0.1, Omega=OMEGA), RATES),
    "separable tree": (separable(network, X, Y_L, lam=0.1), NETWORK),
    "separable Gram": (separable(solver=xv.lower.Cholesky(), lam=0.1, Omega=OMEGA), RATES),
    "bilevel Omega": (bilevel(pair(decays, T_L, Y_L, lam=0.05, Omega=OMEGA)), RATES),
    "bilevel no ridge": (bilevel(pair(decays, T_L, Y_L)), RATES),
    "bilevel upper ridge": (bilevel(upper=pair(decays, T_U, Y_U, rows=4, lam=0.4, Omega=OMEGA)), RATES),
    "bilevel penalty": (bilevel(R=energy, mu=0.02), RATES),
    "bilevel moving targets": (bilevel(lower_moving, upper_moving), RATES),
    "bilevel many targets": (bilevel(lower_many, upper_many), RATES),
    "bilevel upper in memory": (bilevel(kept="upper"), RATES),
    "bilevel lower in memory": (bilevel(kept="lower"), RATES),
    "bilevel tree": (bilevel(pair(network, X, Y_L, lam=0.05), pair(network, X[:15], Y_U, rows=4)), NETWORK),
    "bilevel Gram": (bilevel(pair(decays, T_L, Y_L, lam=0.1, solver=xv.lower.Cholesky())), RATES),
}


def on(backend, *case):
    """JAX compiles every case anew, with `-m thorough`."""
    return pytest.param(backend, *case, marks=[pytest.mark.thorough] if backend == "jax" else [])


over_backends = pytest.mark.parametrize("backend", [on(b) for b in BACKENDS], indirect=True)


@over_backends
@pytest.mark.parametrize("solver", [None, xv.lower.Cholesky()])
@pytest.mark.parametrize("level", [{"y": COMPLEX["y"], "lam": 0.1}, COMPLEX], ids=["real design", "complex design"])
def test_complex_levels_in_chunks_are_those_of_all_rows(level, solver, backend):
    whole, part = separable(**level, solver=solver)
    (value, gradient), (want, slope) = (xv.value_and_gradient(p, RATES, backend=backend.name) for p in (part, whole))
    assert error(value, want) <= 1e-12
    assert error(gradient, slope) <= 1e-12


def test_value_and_gradient_are_those_of_all_rows(backend, subtests):
    """JAX compiles every case anew: two represent all."""
    for case in ("separable", "bilevel many targets") if backend.name == "jax" else CASES:
        (whole, part), theta = CASES[case]
        value, gradient = xv.value_and_gradient(part, theta, backend=backend.name)
        want, want_gradient = xv.value_and_gradient(whole, theta, backend=backend.name)
        with subtests.test(case):
            assert error(value, want) <= 1e-12
            assert error(gradient, want_gradient) <= 1e-12


# -- what is left of the rows ------------------------------------------------------------------------------------------


def graded(cond, seed=0, m=400, n=6):
    U, _ = np.linalg.qr(rng(seed).normal(size=(m, n)))
    V, _ = np.linalg.qr(rng(seed + 1).normal(size=(n, n)))
    return (U * np.logspace(0, -np.log10(cond), n)) @ V.T


@over_backends
@pytest.mark.parametrize("cond", [1e3, 1e6, 1e9])
def test_a_triangle_has_the_accuracy_of_qr(cond, backend):
    A, w = graded(cond), rng(2).normal(size=(6, 1))
    problem = xv.separable(lambda theta, A: theta * A, xv.RowChunks.cut(A, A @ w, 50))
    fit = xv.solve(problem, np.array([1.0]), max_iter=0, backend=backend.name)
    assert error(fit.w, w) <= 100 * cond * np.finfo(float).eps
    assert fit.verified.condition == pytest.approx(np.linalg.cond(A / np.linalg.norm(A, axis=0)), rel=0.01)


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_a_perfect_fit_is_seen_to_be_one(scale):
    """The value is a sum of what was left over, never a difference of squares."""
    t = np.linspace(0.0, 2.0, 500)
    y = scale * decays(RATES, t) @ np.array([2.0, 1.0, 3.0])
    value, _ = xv.value_and_gradient(xv.separable(decays, xv.RowChunks.cut(t, y, 37)), RATES)
    assert value <= 1e-27 * np.sum(y**2)


@over_backends
@pytest.mark.filterwarnings("ignore::xvarpro.DeadUnitsWarning")
@pytest.mark.parametrize("solver", [None, xv.lower.Cholesky()])
@pytest.mark.parametrize("kind", ["zero column", "equal columns", "too few rows"])
def test_loss_of_rank_is_a_status(kind, solver, backend):
    A = rng(0).normal(size=(3 if kind == "too few rows" else 400, 4))
    if kind == "zero column":
        A[:, 1] = 0
    elif kind == "equal columns":
        A[:, 2] = A[:, 0]
    chunks = xv.RowChunks.cut(A, rng(1).normal(size=A.shape[0]), 2 if kind == "too few rows" else 90)
    fit = xv.solve(
        xv.separable(lambda theta, A: theta * A, chunks, solver=solver), np.array([1.0]), backend=backend.name
    )
    assert fit.status is xv.Status.RANK_DEFICIENT


@pytest.mark.parametrize(
    ("size", "lam", "dead"), [(0.0, 0.1, 1), (1e-17, 0.1, 1), (1e-17, 0.0, 0), (np.arange(40) % 2, 0.1, 0)]
)
def test_dead_units_are_counted(size, lam, dead):
    """Without a ridge small ones are none, and with one those are none that have zeros in some rows."""
    A = rng(0).normal(size=(40, 3))
    A[:, 1] = -np.abs(A[:, 1]) * size
    problem = xv.separable(lambda theta, A: theta * A, xv.RowChunks.cut(A, A[:, 0], 9), lam=lam)
    with pytest.warns(xv.DeadUnitsWarning, match="1 of 3") if dead else nullcontext():
        fit = xv.solve(problem, np.array([1.0]), max_iter=1)
    assert (fit.verified.units, fit.verified.dead_units) == (3, dead)


def assembled(problem, theta=RATES, energy=None):
    """The objective of a problem, at the size of a target, and theta in its units."""
    prepared = prepare(problem, theta)
    f = prepared.assemble(prepared.problem)
    if energy is not None:
        f.energy = np.asarray(energy)
    return f, prepared


def test_one_column_that_is_not_finite_is_enough():
    problem = xv.separable(lambda theta, A: A / theta, xv.RowChunks.cut(np.ones((9, 2)), np.ones(9), 4), lam=0.1)
    f, _ = assembled(problem, np.ones(2))
    with np.errstate(all="ignore"):
        finite = [bool(f.diagnose((np.array(x),)).finite) for x in ([1.0, 1.0], [1.0, 0.0], [0.0, 1.0])]
    assert finite == [True, False, False]


@pytest.mark.parametrize(("rows", "chunks"), [(24, 1), (7, 4)])
def test_what_rounds_is_the_number_of_chunks(rows, chunks):
    """The error of a value grows with the root of how many were folded; its sign does not matter."""
    f, prepared = assembled(separable(rows=rows)[1], energy=1e6)
    value = f.point(prepared.theta).value
    once = np.sqrt(value * 1e6) + value
    assert f.rounding(value) == pytest.approx(4 * np.finfo(float).eps * (value + chunks**0.5 * once))
    assert f.rounding(-value) == f.rounding(value)


def test_the_value_of_two_levels_rounds_as_in_memory():
    """Its residual is computed, whatever was condensed before."""
    found = [float(assembled(problem, energy=1e6)[0].rounding(np.asarray(2.0))) for problem in bilevel()]
    assert found[0] == found[1] > 0


def test_a_penalty_without_weight_is_not_asked():
    def penalty(theta):
        raise AssertionError

    for problem in separable(R=penalty, mu=0.0):
        value, gradient = xv.value_and_gradient(problem, RATES)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()


def test_the_size_is_that_at_the_theta_which_is_asked_for():
    """Also where one leaf is the array that it was."""

    def M(theta, t):
        return decays(theta["rates"], t)

    def y(theta, t):
        return moving(theta["rates"], t) + theta["level"]

    f, prepared = assembled(separable(M, T_L, y)[1], {"rates": RATES, "level": np.ones(1)})
    level, rates = prepared.theta
    f.point((level, rates))
    size = float(f.scale((3 * level, rates)))
    y_there = np.sin(T_L * RATES.sum()) + 3
    assert size / prepared.y_unit**2 == pytest.approx(0.5 * y_there @ y_there, rel=1e-12)


T = np.linspace(0.0, 2.0, 90)
SIGNAL = np.exp(-np.outer(T, [1.0, 4.0])) @ np.array([2.0, 1.0]) + 0.01 * rng(1).normal(size=90)
BOX = xv.sets.Box(0.1, 10.0)
START = np.array([0.5, 8.0])


@pytest.mark.parametrize("turn", [1.0, 1j])
def test_a_trial_that_cannot_be_computed_has_no_value(turn):
    """A model that inverts a singular matrix raises on NumPy: at a trial point that is a NaN, and a shorter step."""

    def fragile(theta, t):
        xp = xv.array_namespace(theta)
        inverse = xp.linalg.inv(xp.reshape(theta[0], (1, 1)))
        return turn * xp.exp(-xp.expand_dims(t, axis=1) * inverse[0, 0])

    problem = xv.separable(fragile, xv.RowChunks.cut(T, turn * np.exp(-5.0 * T), 20))
    made = prepare(problem, np.array([1.0]))
    value = made.assemble(made.problem).point((np.array([0.0]),)).value
    assert (value.dtype, bool(np.isnan(value))) == (np.float64, True)
    method = xv.algorithms.cr_varpro()
    fit = xv.solve(problem, np.array([1.0]), over=xv.sets.Box(0.0, 1.0), algorithm=method, max_iter=10)
    assert np.isfinite(fit.value)
    assert 0 < fit.theta[0] < 1


# -- passes, and what is alive during them -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "levels"), [on(b, c) for b in BACKENDS for c in ("separable", "bilevel")], indirect=["backend"]
)
def test_no_chunk_outlives_its_turn(levels, backend):
    lower, upper = Watched(T, SIGNAL, size=30), Watched(T[::2], SIGNAL[::2], size=15)
    if levels == "separable":
        problem = xv.separable(decays, xv.RowChunks(lower), lam=0.1)
    else:
        problem = xv.bilevel(
            lower=xv.Level(decays, xv.RowChunks(lower), lam=0.1), upper=xv.Level(decays, xv.RowChunks(upper))
        )
    gc.disable()
    try:
        fit = xv.solve(problem, START, over=BOX, max_iter=3, backend=backend.name)
        assert error(fit.w, xv.solve(problem, START, over=BOX, max_iter=3).w) <= 1e-10
    finally:
        gc.enable()
    assert lower.most == upper.most == 0


def test_passes_are_counted():
    """A first look, and then one for a value and one for a gradient; the upper level's are one where both are due."""
    lower, upper = (Watched(T, SIGNAL, size=5) for _ in range(2))
    xv.value_and_gradient(
        xv.bilevel(lower=xv.Level(decays, xv.RowChunks(lower)), upper=xv.Level(decays, xv.RowChunks(upper))), START
    )
    assert (lower.passes, upper.passes) == (1 + 2, 1 + 1)
    lower = Watched(T, SIGNAL, size=5)
    problem = xv.separable(decays, xv.RowChunks(lower))
    fit = xv.solve(problem, START, over=BOX, algorithm=xv.algorithms.cr_varpro(), max_iter=5)
    passes = 1 + fit.counts.values + fit.counts.gradients + 1
    assert lower.passes == passes, "a look, the work, the verification"
    assert fit.w.shape == (2,)
    assert lower.passes == passes, "w came with the verification"


def test_memory_is_bounded_by_the_chunk():
    rows, chunks = 20_000, 60

    def source():
        for i in range(chunks):
            t = (i + np.linspace(0.0, 1.0, rows)) / chunks
            yield t, np.exp(-3.0 * t)

    problem = xv.separable(decays, xv.RowChunks(source), lam=1e-3)
    theta = np.array([1.0, 2.0, 5.0, 7.0])
    design = 8 * rows * theta.size
    xv.value_and_gradient(problem, theta)
    tracemalloc.start()
    try:
        xv.value_and_gradient(problem, theta)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 8 * design, "what the derivative of one chunk holds; all rows would be sixty times as much"


@over_backends
def test_chunks_from_another_framework(backend):
    for name in ("numpy", "torch", "jax"):
        owner = xv.backends.get(name)
        with owner.scope("float64"):
            chunks = [send_tree(owner, (T[a : a + 40], SIGNAL[a : a + 40])) for a in range(0, 90, 40)]
        value, _ = xv.value_and_gradient(xv.separable(decays, xv.RowChunks(chunks)), START, backend=backend.name)
        assert error(value, xv.value_and_gradient(xv.separable(decays, SIGNAL, data=T), START)[0]) <= 1e-12


def test_wider_data_warns_once(recwarn):
    part = xv.separable(decays, xv.RowChunks.cut(T, SIGNAL.astype("float32"), 10))
    xv.solve(part, START.astype("float32"), over=BOX, max_iter=2)
    assert [w.category for w in recwarn] == [xv.PrecisionWarning]
    assert "data, chunk 0, is float64" in str(recwarn[0].message)


@pytest.mark.parametrize(("pause", "show", "shown"), [(1.1, True, True), (1.1, False, False), (0.0, True, False)])
def test_a_long_pass_shows_its_chunks(pause, show, shown, capsys):
    passes = []

    def source():
        passes.append(1)
        for i in range(2):
            yield T[i::2], SIGNAL[i::2]
            if len(passes) == 2:
                time.sleep(pause)  # the first pass looks at shapes, and the second is seen to be long

    xv.solve(xv.separable(decays, xv.RowChunks(source)), START, max_iter=0, progress=show)
    assert ("rows:" in capsys.readouterr().err) == shown


# -- wrong sources -----------------------------------------------------------------------------------------------------

GOOD = [(T[:30], SIGNAL[:30]), (T[30:60], SIGNAL[30:60])]


def evaluate(chunks, M=decays, **keywords):
    return xv.value_and_gradient(xv.separable(M, xv.RowChunks(chunks), **keywords), START)


def test_a_source_without_chunks(subtests):
    supply = iter([*GOOD, *GOOD])

    class Loader:  # as one of PyTorch whose workers live on
        persistent_workers = True

        def __iter__(self):
            return supply

    empty = (T[:0], SIGNAL[:0])
    for message, source in (
        ("must start a fresh pass .* same list_iterator twice$", lambda: supply),
        ("same list_iterator twice. Make the DataLoader with persistent_workers=False$", Loader()),
        ("must return an iterable of chunks; got int", lambda: 3),
        ("the source must yield at least one chunk with rows; got none", []),
        ("the source must yield at least one chunk with rows; got 2 without rows", [empty, empty]),
        ("function that starts a fresh pass.*one pass at most", iter(GOOD)),
        ("function that starts a fresh pass.*one pass at most", (c for c in GOOD)),
        ("must be a list of chunks or a function", 3),
    ):
        with subtests.test(message), pytest.raises(ProblemError, match=message):
            evaluate(source)
    with pytest.raises(ProblemError, match="one pass at most"):
        xv.ColumnChunks(iter(GOOD))


@over_backends
def test_chunks_without_rows_are_passed_over(backend):
    empty = (T[:0], SIGNAL[:0])
    want, slope = evaluate(GOOD)
    for chunks in ([GOOD[0], empty, GOOD[1]], [([], []), *GOOD, empty]):
        problem = xv.separable(decays, xv.RowChunks(chunks))
        value, gradient = xv.value_and_gradient(problem, START, backend=backend.name)
        assert error(value, want) <= 1e-12
        assert error(gradient, slope) <= 1e-10
    bare = [x for x, _ in GOOD]
    values = [
        xv.value_and_gradient(xv.separable(decays, xv.RowChunks(chunks, y=lambda theta, t: t)), START)[0]
        for chunks in (bare, [bare[0], T[:0], bare[1]])
    ]
    assert values[0] == values[1]


def test_chunks_that_differ_from_pass_to_pass_are_suspected():
    draw = rng(3)

    def source():
        for rows in np.split(np.arange(T.size), 3):
            yield T[rows], SIGNAL[rows] + 0.3 * draw.normal(size=rows.size)

    fit = xv.solve(xv.separable(decays, xv.RowChunks(source)), START, over=xv.sets.Box(0.0, 10.0))
    assert fit.status is xv.Status.NO_DESCENT
    assert "must give the same rows" in fit.message


def test_models_and_upper_levels_that_fail_on_a_chunk_are_named_by_its_number(backend):
    x, y, W = rng(0).normal(size=(30, 4)), SIGNAL[:30], np.ones((4, 2))
    for M, kind, message in (
        (lambda theta, d: d["x"] * theta[0], ProblemError, r"M\(theta, data\) must have shape \(rows, 4\); got \(30,"),
        (lambda theta, d: (d["x"] @ d["W"]) * theta, ModelError, "a model function failed"),
    ):
        chunks = xv.RowChunks([({"x": part, "W": W}, y) for part in (x, x[:, :3])])
        with pytest.raises(kind, match=f"chunk 1: {message}"):
            xv.value_and_gradient(xv.separable(M, chunks, lam=1.0), START, backend=backend.name)
    bad = xv.RowChunks([*GOOD, (T[60:], SIGNAL[60:80])])
    with pytest.raises(ProblemError, match="upper chunk 2: M"):
        xv.value_and_gradient(
            xv.bilevel(lower=xv.Level(decays, xv.RowChunks(GOOD)), upper=xv.Level(decays, bad)), START
        )


def test_wrong_chunks_are_named_by_number(backend, subtests):
    for bad, message in (
        (T[60:], r"chunk 2 must be a pair \(data, y\); got an array of shape \(30,\)"),
        ((T[60:], None), r"chunk 2: y must be an array of shape \(rows,\) or \(rows, k\); got NoneType"),
        ((T[60:], SIGNAL[60:, None]), r"chunk 2: y must have shape \(rows,\), .* got \(30, 1\)"),
        ((T[60:], SIGNAL[60:80]), r"chunk 2: M\(theta, data\) and y must have the same number of rows; got 30 and 20"),
        ((T[60:].astype("float32"), SIGNAL[60:]), r"chunk 2: data must be float64, as in chunk 0; got float32"),
        ((T[60:], SIGNAL[60:].astype("float32")), r"chunk 2: y must be float64, as in chunk 0; got float32"),
        ((T[60:].astype("int64"), SIGNAL[60:]), r"got int64\. Convert all chunks to one float dtype: where a file"),
        (({"t": T[60:]}, SIGNAL[60:]), r"chunk 2: data must have the structure of chunk 0, .* got \[\"data\['t'\]\""),
        ((np.where(T[60:] > 1.5, np.nan, T[60:]), SIGNAL[60:]), r"data, chunk 2, must be finite"),
        ((T[60:], np.where(T[60:] > 1.5, np.inf, SIGNAL[60:])), r"y, chunk 2, must be finite.* weights=lambda data"),
        ((T[60:, None, None], SIGNAL[60:]), r"chunk 2: .*"),
    ):
        with subtests.test(message), pytest.raises((ProblemError, ModelError), match=message):
            xv.value_and_gradient(xv.separable(decays, xv.RowChunks([*GOOD, bad])), START, backend=backend.name)


def test_another_number_of_rows_on_the_second_pass():
    passes = iter(range(100))

    def source():
        rows = 60 if next(passes) < 2 else 50
        yield T[:30], SIGNAL[:30]
        yield T[30:rows], SIGNAL[30:rows]

    with pytest.raises(ProblemError, match=r"got 50 rows in 2 chunks on this pass and 60 in 2 before"):
        evaluate(source)


def test_an_error_of_the_source_is_its_own():
    def source():
        yield GOOD[0]
        raise OSError("disk on fire")

    with pytest.raises(OSError, match="disk on fire"):
        evaluate(source)


def test_what_rows_do_not_go_with(subtests):
    rows, columns = xv.RowChunks(GOOD), xv.ColumnChunks([np.ones((3, 2))])
    many, marquardt = xv.RowChunks.cut(T_L, rng(9).normal(size=(24, 9)), 7), xv.algorithms.LevenbergMarquardt()
    for message, call in (
        (r"data\['t'\] has 90 rows, y has 89 rows", lambda: xv.RowChunks.cut({"t": T}, SIGNAL[:-1], 10)),
        ("got no array", lambda: xv.RowChunks.cut({"n": 3}, moving, 10)),
        ("rows must be a whole number > 0 per chunk; got 0", lambda: xv.RowChunks.cut(T, SIGNAL, 0)),
        ("rows must be a whole number > 0 per chunk; got True", lambda: xv.RowChunks.cut(T, SIGNAL, rows=True)),
        ("y of RowChunks must be a function", lambda: xv.RowChunks(GOOD, y=SIGNAL)),
        ("data must be None", lambda: xv.separable(decays, rows, data=T)),
        (r"lower.QR\(\) or lower.Cholesky\(\) .*; got SVD", lambda: xv.separable(decays, rows, solver=xv.lower.SVD())),
        (
            "as ColumnChunks in both levels or in neither",
            lambda: xv.bilevel(lower=xv.Level(decays, columns), upper=xv.Level(decays, rows)),
        ),
        ("reads the whole residual, to re-seed", lambda: assembled(xv.separable(decays, rows), START)[0].target_shape),
        ("at most 8 right-hand sides", lambda: xv.solve(xv.separable(decays, many), RATES, algorithm=marquardt)),
    ):
        with subtests.test(message), pytest.raises(ProblemError, match=message):
            call()


@pytest.mark.parametrize("rows", [None, 4000])
@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_single_precision_keeps_its_digits_over_a_million_rows(name, rows):
    """BLAS loses them in products of very many rows, and sums do with the triangle of all rows before."""
    t = (2.0 * rng(1).random(1_000_000)).astype("float32")
    y = (2 * np.exp(-t) + np.exp(-5 * t) + 0.01 * rng(2).normal(size=t.size)).astype("float32")
    single = xv.separable(decays, y, data=t) if rows is None else xv.separable(decays, xv.RowChunks.cut(t, y, rows))
    double = xv.separable(decays, y.astype(float), data=t.astype(float))
    # the gradient of the second is nearly 0, and w is not corrected in chunks
    for rates, tol in [([0.9, 4.0], 1e-3), ([1.0, 1.1, 5.0], 2e-2)][: 2 if rows is None else 1]:
        theta = np.array(rates, dtype="float32")
        value, gradient = xv.value_and_gradient(single, theta, backend=name)
        want, slope = xv.value_and_gradient(double, theta.astype(float))
        assert float(value) == pytest.approx(float(want), rel=1e-5)
        assert error(gradient, slope) <= tol


@pytest.mark.parametrize("rows", [None, 4000])
def test_errors_of_very_many_numbers_in_single_precision_are_those_in_double(rows):
    """Their rank is not lost to the number of rows, nor their digits to the triangle of all rows before."""
    t = (2.0 * rng(1).random(400_000)).astype("float32")
    y = (2 * np.exp(-t) + np.exp(-1.5 * t) + 0.01 * rng(2).normal(size=t.size)).astype("float32")
    problem = xv.separable(decays, y, data=t) if rows is None else xv.separable(decays, xv.RowChunks.cut(t, y, rows))
    found = xv.statistics.linear_theory(problem, np.array([1.0, 1.5], dtype="float32"))
    want = xv.statistics.linear_theory(problem, np.array([1.0, 1.5]))
    assert error(found.theta_stderr, want.theta_stderr) <= 1e-2
