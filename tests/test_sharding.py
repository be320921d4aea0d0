"""Sharded arrays of JAX: in one process with eight devices, and in two processes with two devices each."""

import os
import re
import socket
import time
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.driver.prepare import prepare

from .processes import both, start

jax = pytest.importorskip("jax")
jnp = jax.numpy
P = jax.sharding.PartitionSpec

# compiling takes most of the time
QUICK = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count="
EXCHANGE = re.compile(r"= (.*?) (?:all-gather|all-to-all|all-reduce|collective-permute|reduce-scatter)(?:-start)?\(")
START, BOX, FIRST_ORDER = np.array([0.5, 8.0]), xv.sets.Box(0.0, 10.0), xv.algorithms.FrankWolfe()


def devices():
    """In a process whose variables say how many: JAX has read the others when it was imported."""
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", "cpu")


def mesh(kind, *shape):
    return jax.make_mesh(
        shape, ("i", "j")[: len(shape)], axis_types=(getattr(jax.sharding.AxisType, kind),) * len(shape)
    )


def times(m):
    return np.linspace(0.0, 2.0, m)


def curves(m):
    return np.exp(-times(m)[:, None] * np.array([1.0, 5.0]))


def signal(m=64):
    return curves(m) @ np.array([2.0, 1.0]) + 0.01 * np.random.default_rng(0).normal(size=m)


def signals(k=24, m=64):
    draw = np.random.default_rng(1)
    Y = curves(m) @ draw.normal(size=(2, 24)) + 0.01 * draw.normal(size=(m, 24))
    return np.tile(Y, (1, -(-k // 24)))[:, :k]


def M(theta, data):
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(data["t"], axis=1) * theta)


def on(mesh, x, *spec):
    if mesh is None:
        return x
    return jax.make_array_from_callback(x.shape, jax.sharding.NamedSharding(mesh, P(*spec)), lambda i: x[i])


def rows(mesh, m=64, **given):
    return xv.separable(M, on(mesh, signal(m), "i"), data={"t": on(mesh, times(m), "i")}, **given)


def columns(mesh, k=24, **given):
    return xv.separable(M, on(mesh, signals(k), None, "i"), data={"t": times(64)}, **given)


def parts(mesh):
    """Rows and columns."""
    y = on(mesh, signals(), "i", "j")
    return xv.separable(M, y, data={"t": on(mesh, times(64), "i")}, compress=False, lam=1e-3)


def bilevel(mesh):
    level = xv.Level(M, on(mesh, signal(), "i"), lam=1e-2)
    upper = xv.Level(M, on(mesh, 1.01 * signal(), "i"))
    return xv.bilevel(lower=level, upper=upper, data={"t": on(mesh, times(64), "i")})


def close(found, want, tolerance=1e-10):
    found, want = np.asarray(found), np.asarray(want)
    assert found.shape == want.shape
    assert np.abs(found - want).max() <= tolerance * np.abs(want).max(), (found, want)


def agrees(problem, w_spec, mesh, over=BOX, theta0=START, **options):
    one = xv.solve(problem(None), theta0, over=over, **options)  # of NumPy
    fit = xv.solve(problem(mesh), jnp.asarray(theta0), over=over, **options)
    assert (fit.status, fit.n_iter) == (one.status, one.n_iter)
    close(fit.theta, one.theta)
    close(fit.w, one.w)
    close(fit.value, one.value)
    sharding = partial(jax.sharding.NamedSharding, mesh)
    assert fit.theta.sharding.is_equivalent_to(sharding(P()), fit.theta.ndim)
    assert fit.w.sharding.is_equivalent_to(sharding(P(*w_spec)), fit.w.ndim)
    assert fit.w.sharding.mesh == fit.theta.sharding.mesh == mesh
    return fit, one


def slopes_agree(problem, mesh):
    value, slope = xv.value_and_gradient(problem(mesh), jnp.asarray(START))
    want, want_slope = xv.value_and_gradient(problem(None), START)
    close(value, want)
    close(slope, want_slope)


def refused(message):
    return pytest.raises(xv.errors.ProblemError, match=re.escape(message))


# -- one process -------------------------------------------------------------------------------------------------------


def programs():
    """Numbers of programs of each loop."""
    kept = xv.backends.get("jax")._cache
    return [f._cache_size() for (key, _), f in kept.items() if isinstance(key[0], tuple) and key[0][0] == "step"]


def exchanged(folder):
    """Entries of the largest array in each exchange of the programs so far, and their names."""
    return [
        (max(map(entries, re.findall(r"\[([\d,]*)\]", match[1]))), path.name, match[0])
        for path in Path(folder).rglob("*after_optimizations.txt")
        for match in map(EXCHANGE.search, path.read_text().splitlines())
        if match
    ]


def entries(shape):
    return prod(int(n) for n in shape.split(",") if n)


def one_process(folder):
    devices()
    auto, explicit = mesh("Auto", 4, 2), mesh("Explicit", 4, 2)
    fit, one = agrees(partial(rows, m=4096), (), explicit)
    assert programs() == [1]
    few(exchanged(folder))
    assert fit.fitted.sharding.spec[0] == "i"
    close(fit.residuals, one.residuals)
    factors(auto)
    L = xv.compress(on(explicit, signals(192), None, "i"))
    close(L @ L.T, 8 * signals() @ signals().T)
    misfits(auto, explicit)


def few(found):
    """What programs exchange does not depend on the 4096 rows or columns that are sharded."""
    assert max(found)[0] < 512, max(found)
    assert any("iterate" in name for _, name, _ in found)


def factors(auto):
    """A QR by parts is one: of a matrix whose rows the devices do not divide, too; a wide one is gathered."""
    backend, draw = prepare(rows(auto), jnp.asarray(START)).backend, np.random.default_rng(0)
    for shape in ((67, 3), (5, 3), (64, 64)):
        A = draw.normal(size=shape)
        with backend.scope("float64"):
            Q, R, triangle = jax.jit(lambda A: (*backend.qr(A), backend.qr(A, mode="r")[1]))(A)
        close(Q @ R, A)
        close(Q.T @ Q, np.eye(shape[1]))
        close(np.abs(triangle), np.abs(R))


def misfits(auto, explicit):
    """What does not fit together."""
    y, t = signal(), times(64)
    other = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("i",))
    stray = xv.separable(M, on(auto, y, "i"), data={"t": on(other, t, "i")})
    with refused("sharded arrays must lie on one mesh; got y on"):
        xv.solve(stray, jnp.asarray(START))
    with refused("a batch of problems needs arrays that lie on one device each"):
        xv.multistart(rows(auto), jnp.asarray(np.stack([START, START])), over=BOX)
    y[3] = np.nan
    with refused("y must be finite; got NaN or inf at index [3]"):
        xv.solve(xv.separable(M, on(explicit, y, "i"), data={"t": t}), jnp.asarray(START))


def in_one_process(fun, folder):
    flags = f"{QUICK}8 --xla_dump_to={folder} --xla_dump_hlo_as_text"
    start(fun, folder, XLA_FLAGS=flags).returned(600.0)


def test_solves_of_sharded_rows_are_those_of_whole_ones_and_no_device_gets_the_rows_of_others(tmp_path):
    in_one_process(one_process, tmp_path)


def more_solves(folder):
    devices()
    auto, explicit = mesh("Auto", 4, 2), mesh("Explicit", 4, 2)
    agrees(partial(columns, k=4096, compress=False), (None, "i"), auto)
    few(exchanged(folder))
    fit, one = agrees(rows, (), explicit)
    close(fit.statistics().theta_stderr, one.statistics().theta_stderr)
    fit.save(f"{folder}/fit.npz")
    close(xv.Result.load(f"{folder}/fit.npz", like=fit.theta).theta, one.theta)
    slopes_agree(partial(rows, lam=1e-3), explicit)
    value, _ = xv.value_and_gradient(rows(auto), jnp.asarray(START), device="cpu:1")  # gets everything
    close(value, xv.value_and_gradient(rows(None), START)[0])
    agrees(bilevel, (), auto)
    agrees(partial(columns, k=192), (None, "i"), explicit)
    slopes_agree(parts, auto)
    quasi_newton = xv.algorithms.ProjectedQuasiNewton()
    agrees(partial(rows, lam=1e-3, weights=1 + times(64)), (), auto, algorithm=quasi_newton, max_iter=4)
    ball = dict(over=xv.sets.L1Ball(5.0), theta0=np.array([0.5, 2.0]), algorithm=FIRST_ORDER)
    agrees(partial(rows, lam=1e-3, solver=xv.lower.SVD()), (), explicit, max_iter=9, **ball)

    # theta0 that is sharded, on a mesh that the caller has set: results as it is
    draw = np.random.default_rng(0)
    atoms, y = draw.normal(size=(64, 3)) / 8, draw.normal(size=(64, 40))

    def dictionary(mesh):
        return xv.separable(lambda theta, data: theta, on(mesh, y, "i"), lam=1e-2)

    options = dict(over=xv.sets.Box(-0.5, 0.5), max_iter=20)
    one = xv.solve(dictionary(None), atoms, **options)
    with jax.set_mesh(explicit):
        fit = xv.solve(dictionary(explicit), on(explicit, atoms, "i"), **options)
        assert fit.theta.sharding.is_equivalent_to(jax.sharding.NamedSharding(explicit, P("i")), 2)
        close(fit.theta, one.theta)
        close(fit.w, one.w)

    # going on, from a result and from a file
    ridged, given = rows(explicit, lam=1e-3), dict(over=BOX, backend="jax", tol=0.0)
    whole = xv.solve(ridged, START, **given, max_iter=6)
    assert isinstance(whole.theta, np.ndarray)
    assert isinstance(whole.w, np.ndarray)
    half = xv.solve(ridged, START, **given, max_iter=3, checkpoint=f"{folder}/half.npz")
    for again in (
        xv.solve(ridged, half, tol=0.0, max_iter=6),
        xv.solve(ridged, START, **given, max_iter=6, resume=f"{folder}/half.npz"),
    ):
        assert np.array_equal(again.theta, whole.theta)
        assert again.n_iter == whole.n_iter


@pytest.mark.thorough
def test_other_problems_and_algorithms_which_compile_for_long(tmp_path):
    in_one_process(more_solves, tmp_path)


# -- two processes -----------------------------------------------------------------------------------------------------


def two_processes(rank, port, folder):
    devices()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
    shares()
    clocks(rank, folder)


def shares():
    """Columns; rows are what `clocks` solves for."""
    over = mesh("Explicit", 4)
    one = xv.solve(columns(None, k=192), START, over=BOX)
    fit = xv.solve(columns(over, k=192), jnp.asarray(START), over=BOX)
    assert (fit.status, fit.n_iter) == (one.status, one.n_iter)
    close(fit.theta, one.theta)
    assert not fit.w.is_fully_replicated
    for shard in fit.w.addressable_shards:
        close(shard.data, one.w[shard.index])
    value, slope = xv.value_and_gradient(rows(over, lam=1e-3), START, backend="jax")
    want, want_slope = xv.value_and_gradient(rows(None, lam=1e-3), START)
    close(value, want)
    close(slope, want_slope)


def clocks(rank, folder):
    """Each has a clock of its own; a limit of time and checkpoints by seconds end both after one iteration count."""
    auto = mesh("Auto", 4)
    given = dict(over=BOX, tol=0.0, algorithm=FIRST_ORDER)
    one = xv.solve(rows(None), START, **given, max_iter=4)
    fit = xv.solve(rows(auto), START, **given, max_iter=4, backend="jax")
    close(fit.w, one.w)  # NumPy's, as theta0
    close(fit.statistics().theta_stderr, one.statistics().theta_stderr)
    clock = time.perf_counter
    time.perf_counter = lambda: clock() * (1 + 9 * rank) + 1e3 * rank
    options = dict(backend="jax", max_iter=10**7, **given)
    path = f"{folder}/{rank}.npz"
    short = xv.solve(rows(auto), START, time_limit=0.3, checkpoint=path, checkpoint_every=0.1, **options)
    assert short.status is xv.Status.TIME_LIMIT
    counts = jax.experimental.multihost_utils.process_allgather(np.int32(short.n_iter))
    assert counts[0] == counts[1] > 1, counts
    again = xv.solve(rows(auto), START, time_limit=0.2, resume=path, **options)
    assert again.n_iter > short.n_iter
    # a file names the rows of all processes
    shifted = xv.separable(M, on(auto, signal() + 1, "i"), data={"t": on(auto, times(64), "i")})
    with refused("y has other values"):
        xv.solve(shifted, START, resume=path, **options)


def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.frameworks
def test_two_processes_solve_as_one(tmp_path):
    both(two_processes, port(), tmp_path, XLA_FLAGS=f"{QUICK}2")
