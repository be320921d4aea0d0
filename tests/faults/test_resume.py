"""Interruption: checkpoints, Ctrl-C, kills, and a solve that goes on to the same bits."""

import contextlib
import gc
import inspect
import io
import os
import random
import shutil
import signal
import threading
import time
from dataclasses import fields
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

import xvarpro as xv
from tests.conftest import float64
from tests.processes import start
from tests.support import T, decay_problem, decays, host, posix, product, rng, send, together
from xvarpro import algorithms, cli
from xvarpro.algorithms.interface import Algorithm
from xvarpro.core import trees
from xvarpro.core.status import Status
from xvarpro.driver.checkpoint import _leaf
from xvarpro.errors import ProblemError

# a full step to a vertex of a ball kills atoms: honest, and not what is asked here
pytestmark = pytest.mark.filterwarnings("ignore::xvarpro.DeadUnitsWarning")

EXPORTED = [getattr(algorithms, name) for name in algorithms.__all__]
KINDS = [x for x in EXPORTED if inspect.isclass(x) and issubclass(x, Algorithm) and not inspect.isabstract(x)]
METHODS = {
    **{kind.__name__: kind() for kind in KINDS},
    "cr_varpro": algorithms.cr_varpro(),
    "momentum": algorithms.StochasticFrankWolfe(batch=5, estimator=algorithms.Momentum(), certify=4, period=7),
    "variance reduced": algorithms.StochasticFrankWolfe(
        batch=5, estimator=algorithms.VarianceReduced(recursive=False), certify=4, period=7
    ),
    "reseeded": algorithms.Reseeded(every=3),
    "quasi-Newton at once": algorithms.ProjectedQuasiNewton(settle=0),
    "log-adaptive": algorithms.FrankWolfe(xv.steps.OpenLoop("log")),
}
ITERATIONS = 11  # not a multiple of anything that repeats


def dictionary(theta, data):
    return data @ theta


def atoms(backend="numpy"):
    """A problem, a start with dead atoms, and a set that offers all that any method asks for."""
    data = np.eye(6) + 0.1 * rng(3).normal(size=(6, 6))
    given = {"data": data, "lam": 0.01, "solver": xv.lower.SVD(), "compress": False}
    problem = xv.separable(dictionary, rng(0).normal(size=(6, 20)), **given)
    D = rng(1).normal(size=(6, 4))
    D[:, 3:] = 0.0
    start = 0.9 * D / np.abs(D).sum()
    return problem, send(xv.backends.get(backend), np.asfortranarray(start)), xv.sets.L1Ball(1.0)


def differences(one, other):
    """Names of what differs between two results, bit by bit; times are not compared."""
    pairs = {"theta": (one.theta, other.theta), "w": (one.w, other.w)}
    names = [f.name for f in fields(one.trace) if f.name != "seconds"]
    pairs |= {name: (getattr(one.trace, name), getattr(other.trace, name)) for name in names}
    plain = ("value", "gap_A", "gap_B", "status", "n_iter", "counts", "verified")
    found = [name for name in plain if repr(getattr(one, name)) != repr(getattr(other, name))]
    for name, trees_ in pairs.items():
        bits = [[host(x).tobytes() for x in trees.leaves(tree)] for tree in trees_]
        found += [name] if bits[0] != bits[1] else []
    return found


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_every_method_goes_on_to_the_same_bits(backend, tmp_path, subtests):
    others = {"torch": ("ActiveSetFrankWolfe", "quasi-Newton at once", "reseeded"), "jax": ("variance reduced",)}
    for name in others.get(backend, METHODS):
        with subtests.test(name):
            goes_on(backend, METHODS[name], tmp_path / f"{name}.npz")


def goes_on(backend, method, path):
    with float64(xv.backends.get(backend)):
        problem, theta0, over = atoms(backend)
        given = {"over": over, "algorithm": method, "tol": 1e-14}
        whole = xv.solve(problem, theta0, **given, max_iter=ITERATIONS)
        part = xv.solve(problem, theta0, **given, max_iter=5, checkpoint=path)
        assert part.n_iter == 5 < whole.n_iter
        assert differences(xv.solve(problem, theta0, **given, max_iter=ITERATIONS, resume=path), whole) == []
        assert differences(xv.solve(problem, part, tol=1e-14, max_iter=ITERATIONS), whole) == []


# -- what must not change --------------------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path):
    """The file of a run, and the arguments that it had."""
    given = {"over": xv.sets.Box(0.0, 10.0), "algorithm": algorithms.cr_varpro(), "tol": 1e-9, "max_iter": 8}
    path = tmp_path / "state.npz"
    xv.solve(decay_problem(), np.array([0.5, 6.0]), **given, checkpoint=path)
    return path, given


CHANGES = {
    r"data\['t'\] has other values": lambda: {"problem": changed(data={"t": T + 1e-12})},
    "lower.y has other values": lambda: {"problem": changed(noise=1e-9)},
    "lower.lam has other values": lambda: {"problem": changed(lam=1e-12)},
    "lower.W is given and was missing": lambda: {"problem": changed(W=xv.lower.Nonnegative())},
    "lower.M is twice and was decays": lambda: {"problem": changed(M=twice)},
    "objective at theta0 is": lambda: {"problem": changed(M=namesake())},
    "theta0 has other values": lambda: {"theta0": np.array([0.5, 6.0 + 1e-12])},
    "over.upper has other values": lambda: {"over": xv.sets.Box(0.0, 11.0)},
    r"over is None and was Box\(": lambda: {"over": None},
    r"algorithm is FrankWolfe\(.*cap=0.5.* and was FrankWolfe\(": lambda: {"algorithm": algorithms.FrankWolfe(cap=0.5)},
    "algorithm is LevenbergMarquardt": lambda: {"algorithm": None},
    "tol is 1e-08 and was 1e-09": lambda: {"tol": 1e-8},
    "but backend is torch and was numpy. Pass": lambda: {"backend": "torch"},
    "dtype is float32 and was float64": lambda: single(),
    "must be given by its path; got True": lambda: {"resume": True},
}


def changed(M=decays, data=None, noise=0.0, **keywords):
    return xv.separable(M, decay_problem(noise).lower.y, data=data or {"t": T}, **keywords)


def single():
    y = decay_problem().lower.y.astype(np.float32)
    return {
        "problem": xv.separable(decays, y, data={"t": T.astype(np.float32)}),
        "theta0": np.array([0.5, 6.0], np.float32),
    }


def twice(theta, data):
    return decays(theta, data) * 2


def namesake():
    def other(theta, data):
        return decays(theta * 1.001, data)

    other.__qualname__ = decays.__qualname__
    return other


def test_another_solve_is_refused_by_what_changed(written, subtests):
    path, given = written
    given = {"problem": decay_problem(), "theta0": np.array([0.5, 6.0]), **given}
    for message, change in CHANGES.items():
        with subtests.test(message), pytest.raises(ProblemError, match=message):
            xv.solve(**given | {"resume": path} | change())


def test_a_result_goes_on_with_its_own_sets_method_tolerance_and_backend(written):
    _, given = written
    problem, theta0 = decay_problem(), np.array([0.5, 6.0])
    whole = xv.solve(problem, theta0, **given | {"max_iter": 20}, backend="torch")
    part = xv.solve(problem, theta0, **given, backend="torch")
    assert differences(xv.solve(problem, part, max_iter=20), whole) == []  # tol is 1e-9 as well
    with pytest.raises(ProblemError, match="tol is 1e-06 and was 1e-09"):
        xv.solve(problem, part, tol=1e-6, max_iter=20)
    with pytest.raises(ProblemError, match=r"lower\.y has other values"):
        xv.solve(decay_problem(noise=0.1), part, tol=1e-9)


def test_a_time_limit_is_that_of_the_call(written):
    given = {name: x for name, x in written[1].items() if name != "max_iter"}
    problem, theta0, slow = decay_problem(), np.array([0.5, 6.0]), {"callback": lambda info: time.sleep(0.1)}
    part = xv.solve(problem, theta0, **given, **slow, max_iter=20, time_limit=0.2)
    assert part.status is Status.TIME_LIMIT
    again = xv.solve(problem, part, tol=1e-9, **slow, max_iter=20, time_limit=0.15)
    assert again.n_iter > part.n_iter
    whole = xv.solve(problem, theta0, **given, max_iter=20)
    assert differences(xv.solve(problem, again, tol=1e-9, max_iter=20), whole) == []


class Interrupts:
    """A model that raises at one of its calls; none at 0."""

    def __init__(self, model, at=0):
        self.model, self.calls, self.at = model, 0, at

    def __call__(self, theta, data):
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt
        return self.model(theta, data)

    def results(self, solve, first, parts):
        """What some calls that are interrupted leave of a solve, after a whole one; none in its first checks."""
        self.calls = self.at = 0
        solve()
        for at in range(first, self.calls, max(1, self.calls // parts)):
            self.calls, self.at = 0, at
            with pytest.raises(KeyboardInterrupt) as raised:
                solve()
            self.at = 0
            if hasattr(raised.value, "result"):
                yield raised.value.result


@pytest.mark.parametrize("size", [1.0, 2.0**20])
def test_the_objective_at_the_start_may_differ_by_rounding(size, tmp_path):
    """By 1e4 machine epsilons of it, or of what it is a difference of: another machine rounds another way."""
    path, eps = tmp_path / "state.npz", np.finfo(np.float64).eps

    def problem(value):
        def M(theta, data):
            return data + 0 * theta

        def R(theta):
            return value - size**2 + 0 * theta[0]

        return xv.separable(M, size * np.array([1.0, -1.0]), data=np.ones((2, 1)), R=R, mu=2.0)

    for value in (3 * size**2, 1e-6 * size**2, -3 * size**2):
        xv.solve(problem(value), np.ones(1), checkpoint=path)
        scale = max(abs(value), size**2)
        for factor in (-0.8e4, 0.8e4):
            assert xv.solve(problem(value + factor * eps * scale), np.ones(1), resume=path).success
        for factor in (-1.3e4, 1.3e4):
            with pytest.raises(ProblemError, match="objective at theta0 is"):
                xv.solve(problem(value + factor * eps * scale), np.ones(1), resume=path)


def test_an_objective_without_a_value_goes_on_as_one(tmp_path):
    path = tmp_path / "state.npz"

    def problem(value):
        return xv.separable(product, np.ones(2), R=lambda theta: value + 0 * theta[0, 0], mu=2.0)

    start = np.ones((2, 1))
    xv.solve(problem(np.nan), start, checkpoint=path)
    assert xv.solve(problem(np.nan), start, resume=path).status is Status.NON_FINITE
    with pytest.raises(ProblemError, match="objective at theta0 is 1 and was nan"):
        xv.solve(problem(1.0), start, resume=path)
    xv.solve(problem(1.0), start, checkpoint=path)
    with pytest.raises(ProblemError, match="objective at theta0 is nan and was 1"):
        xv.solve(problem(np.nan), start, resume=path)


def test_numbers_come_back_as_what_they_were():
    """Python's and NumPy's, which compute with other code; what a file cannot hold is refused."""
    for x in (np.float64(0.25), np.float32(0.25), np.int32(3), np.bool_(True), 0.25, 3):
        found = _leaf(np.asarray(x), type(x).__name__, None)
        assert (type(found), found) == (type(x), x)
    for x, kind in ((np.ones(2), "float"), (np.ones(1), "float64"), (np.ones(()), "complex"), (np.ones(()), "int32")):
        with pytest.raises(ProblemError, match=f"holds a {kind} where its file has"):
            _leaf(x, kind, None)


# -- interruptions ---------------------------------------------------------------------------------------------------


def interrupting(at, error=KeyboardInterrupt):
    def callback(info):
        if info.iteration == at:
            raise error

    return callback


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("method", ["FrankWolfe", "momentum", "SpectralProjectedGradient"])
def test_an_interruption_leaves_the_best_iterate_and_a_checkpoint(method, error, tmp_path):
    problem, theta0, over = atoms()
    given = {"over": over, "algorithm": METHODS[method], "tol": 1e-14, "max_iter": ITERATIONS}
    path = tmp_path / "state.npz"
    with pytest.raises(error) as raised:
        xv.solve(problem, theta0, **given, callback=interrupting(7, error), checkpoint=path)
    fit = raised.value.result
    assert fit.status is Status.INTERRUPTED
    assert fit.n_iter == 7
    assert fit.value <= fit.trace.value[0]
    assert xv.value_and_gradient(problem, fit.theta)[0] == pytest.approx(fit.value, rel=1e-12)
    whole = xv.solve(problem, theta0, **given)
    assert differences(xv.solve(problem, theta0, **given, resume=path), whole) == []
    assert differences(xv.solve(problem, fit, tol=1e-14, max_iter=ITERATIONS), whole) == []


def test_the_end_of_a_solve_is_in_its_checkpoint(tmp_path):
    """Also where the next one would have been written much later."""
    path, theta0 = tmp_path / "state.npz", np.array([0.5, 6.0])
    for most in (2, 500):
        fit = xv.solve(decay_problem(), theta0, max_iter=most, checkpoint=path, checkpoint_every=10**6)
        seen = []
        again = xv.solve(decay_problem(), theta0, max_iter=most, resume=path, callback=seen.append)
        assert [info.iteration for info in seen if info.iteration < fit.n_iter] == []
        assert again.trace.value.tolist() == fit.trace.value.tolist()


def test_an_interruption_within_an_iteration_leaves_the_iterate_before(tmp_path):
    """Also where the end of a solve is looked at: the run returns to where it can go on from."""
    theta0, M, path = np.array([0.5, 6.0]), Interrupts(decays), tmp_path / "state.npz"
    given = {"over": xv.sets.Box(0.0, 10.0), "algorithm": algorithms.SpectralProjectedGradient()}
    problem = changed(M, noise=0.1)
    whole = xv.solve(problem, theta0, **given)
    left = list(M.results(lambda: xv.solve(problem, theta0, **given), 3, 12))
    assert len(left) >= 8
    for fit in left:
        assert differences(xv.solve(problem, fit), whole) == []
    # a run that goes on from a checkpoint never returns to before it
    xv.solve(problem, theta0, **given, max_iter=3, checkpoint=path)
    left = list(M.results(lambda: xv.solve(problem, theta0, **given, resume=path), 3, 6))
    assert len(left) >= 3
    assert all(fit.n_iter >= 3 for fit in left)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_an_interruption_of_a_batch_leaves_all_points_so_far(backend):
    t = np.linspace(0.0, 2.0, 40)
    rates = rng(0).uniform(0.2, 9.0, (30, 2))
    y = np.exp(-rates[:, None, :] * t[:, None]) @ np.ones(2)
    M = Interrupts(together)
    problem, theta0 = xv.separable(M, y, data=t), np.tile([0.7, 4.0], (30, 1))
    whole = xv.solve_many(problem, theta0, backend=backend)
    left = list(M.results(lambda: xv.solve_many(problem, theta0, backend=backend), 1, 8))
    assert len(left) >= 5
    for found in left:
        ended = found.status != Status.INTERRUPTED.code
        np.testing.assert_array_equal(found.theta[ended], whole.theta[ended])
        np.testing.assert_array_equal(found.n_iter[ended], whole.n_iter[ended])
        assert (found.value[~ended] >= whole.value[~ended]).all()


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_run(tmp_path):
    problem, theta0, over = atoms()
    given = {"over": over, "algorithm": algorithms.cr_varpro(), "max_iter": 9}
    with pytest.raises(OSError, match="nowhere"):
        xv.solve(problem, theta0, **given, checkpoint=tmp_path / "nowhere" / "state.npz")
    folder = tmp_path / "there"
    folder.mkdir()

    def remove(info):
        if info.iteration == 3:
            shutil.rmtree(folder)

    with pytest.warns(RuntimeWarning, match="the checkpoint was not written"):
        fit = xv.solve(problem, theta0, **given, checkpoint=folder / "state.npz", checkpoint_every=5, callback=remove)
    assert fit.n_iter == 9


@contextlib.contextmanager
def inside(folder):
    before = os.getcwd()
    os.chdir(folder)
    yield
    os.chdir(before)


def interrupted(backend, path):
    """Seconds from Ctrl-C to the end of a solve, the status and the number of iterations of what it leaves."""
    before, sent = (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)), []

    def send():
        while not os.path.exists(path):
            time.sleep(0.01)
        time.sleep(0.3)
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
        sent.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)

    problem, theta0, over = atoms()
    gc.disable()  # what JAX does after a collection loses an exception that is raised there; this process ends soon
    threading.Thread(target=send, daemon=True).start()
    try:
        xv.solve(problem, theta0, over=over, algorithm=algorithms.cr_varpro(), tol=0.0, max_iter=10**8,
                 backend=backend, checkpoint=path)  # fmt: skip
    except KeyboardInterrupt as interrupt:
        return time.perf_counter() - sent[0], interrupt.result.status, interrupt.result.n_iter


@posix
@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_ctrl_c_returns_within_a_second(backend, tmp_path):
    seconds, status, n_iter = start(interrupted, backend, tmp_path / "state.npz").returned()
    assert status is Status.INTERRUPTED
    assert n_iter > 10
    assert seconds < (1.0 if os.getloadavg()[0] < os.cpu_count() else 5.0)  # on cores that are busy otherwise


def run(backend, **more):
    """What a run of a method with a memory finds, to its bits."""
    problem, theta0, over = atoms()
    fit = xv.solve(problem, theta0, over=over, algorithm=METHODS["variance reduced"], tol=0.0, max_iter=60,
                   backend=backend, deterministic=True, **more)  # fmt: skip
    return [host(x).tobytes() for x in (fit.theta, fit.w, fit.trace.value, fit.trace.gap, fit.trace.values)]


@posix
@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_a_run_that_is_killed_goes_on_to_the_same_bits(backend, kills, tmp_path):
    path, draw, died = tmp_path / "state.npz", random.Random(0), 0
    whole = start(run, backend).returned()

    def written():
        return os.stat(path).st_mtime_ns if path.exists() else 0

    while died < kills:
        was = written()
        child = start(partial(run, backend, checkpoint=path, checkpoint_every=1, resume=path if was else None))
        # the first write comes after the compilation; some are killed before
        while draw.random() > 0.002 and written() == was and child.process.is_alive():
            time.sleep(0.005)
        child.process.join(0.1 * draw.random())
        if child.process.is_alive():
            child.process.kill()
            child.process.join()
            died += 1
        else:
            assert child.returned() == whole, died
            path.unlink()
    again = {"resume": path} if path.exists() else {}
    assert start(partial(run, backend, **again)).returned() == whole


def command() -> None:
    problem, theta0, over = atoms()
    given = {"over": over, "algorithm": algorithms.cr_varpro()}
    xv.solve(problem, theta0, **given, max_iter=10).save("first.npz")
    xv.solve(problem, theta0, **given, tol=0.0, max_iter=10**8, checkpoint="state.npz")


def commanded(folder):
    """The status and the messages of a command."""
    cli.register(cli.app, [EntryPoint("long", f"{__name__}:command", cli.GROUP)])
    with inside(folder), contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            cli.app(["run", "long"])
        except SystemExit as end:
            return end.code, errors.getvalue()


@posix
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_ends_with_the_status_of_its_signal_and_keeps_what_it_has(number, status, tmp_path):
    child = start(commanded, tmp_path)
    until = time.monotonic() + 60
    while not (tmp_path / "state.npz").exists() and time.monotonic() < until:
        assert child.process.is_alive()
        time.sleep(0.02)
    time.sleep(0.1)
    os.kill(child.process.pid, number)
    code, errors = child.returned()
    assert code == status
    assert "Traceback" not in errors
    assert sorted(path.name for path in tmp_path.glob("*.npz")) == ["first.npz", "state.npz"]
    assert not list(tmp_path.glob(".*.part"))
    problem, theta0, over = atoms()
    fit = xv.solve(
        problem, theta0, over=over, algorithm=algorithms.cr_varpro(), tol=0.0, max_iter=0, resume=tmp_path / "state.npz"
    )
    assert fit.n_iter > 10


# -- long runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["numpy", pytest.param("jax", marks=pytest.mark.thorough)])
def test_a_trace_is_thinned_on_request(backend, tmp_path):
    problem, theta0, over = atoms()
    given = {"over": over, "algorithm": algorithms.cr_varpro(), "tol": 1e-14, "max_iter": 23, "backend": backend}
    whole = xv.solve(problem, theta0, **given)
    thin = xv.solve(problem, theta0, **given, trace_every=5)
    assert thin.n_iter == 23
    assert thin.trace.iteration.tolist() == [0, 5, 10, 15, 20, 23]
    for f in fields(whole.trace):
        if f.name != "seconds":
            assert np.array_equal(getattr(thin.trace, f.name), getattr(whole.trace, f.name)[thin.trace.iteration])
    path = tmp_path / "state.npz"
    xv.solve(problem, theta0, **given | {"max_iter": 12}, trace_every=5, checkpoint=path)
    again = xv.solve(problem, theta0, **given, trace_every=5, resume=path)
    assert differences(again, thin) == []


def memory():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def grown(marks):
    """Bytes by which the process grows between two iterations, and the length of the trace."""
    seen = []

    def look(info):
        if info.iteration in marks:
            seen.append(memory())

    # the nearest point of a simplex, which steps toward vertices do not reach
    problem = xv.separable(lambda theta, data: data["M"], lambda theta, data: theta - data["point"], lam=1.0,
                           data={"M": np.eye(3)[:, :1], "point": np.array([0.5, 0.4, 0.3])})  # fmt: skip
    fit = xv.solve(problem, np.full(3, 1 / 3), over=xv.sets.Simplex(1.0), tol=0.0, max_iter=marks[-1], callback=look,
                   algorithm=xv.algorithms.FrankWolfe(xv.steps.OpenLoop()), trace_every=1000)  # fmt: skip
    assert fit.n_iter == marks[-1], fit
    return seen[-1] - seen[0], len(fit.trace.value)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("marks", [(250, 1250), pytest.param((10**4, 10**6), marks=pytest.mark.thorough)])
def test_memory_does_not_grow_with_the_iterations(marks):
    more, length = start(grown, marks).returned(600.0)
    assert length == -(-marks[-1] // 1000) + 1
    assert more < 700_000


def test_programs_of_old_shapes_are_let_go_on_jax():
    """Solves of changing size do not grow."""
    backend = xv.backends.get("jax")
    for n in range(1, 20):
        run = backend.call(lambda operands: lambda x: x + operands[0], "a test of shapes")
        assert host(run((np.float32(1.0),), np.ones(n, np.float32))).tolist() == [2.0] * n
    assert run._cache_size() <= 16


def test_results_and_files_that_are_no_place_to_go_on_from(written, tmp_path, subtests):
    path, given = written
    problem, theta0, file, fit = decay_problem(), np.array([0.5, 6.0]), tmp_path / "fit.npz", None
    part = xv.solve(problem, theta0, **given)
    part.save(file)
    for message, args, options in (
        ("both say where to go on: leave one out", (part,), {"tol": 1e-9, "resume": path}),
        ("comes from a file", (xv.Result.load(file),), {}),
        ("not a file that checkpoint= wrote", (theta0,), {"resume": file}),
        ("checkpoint_every", (theta0,), {"checkpoint_every": 0}),
        ("checkpoint_every", (theta0,), {"checkpoint_every": True}),
        ("trace_every", (theta0,), {"trace_every": 0}),
    ):
        with subtests.test(message), pytest.raises(ProblemError, match=message):
            fit = xv.solve(problem, *args, **options)
    assert fit is None
    with pytest.raises(FileNotFoundError):
        xv.solve(problem, theta0, resume=tmp_path / "none.npz")
