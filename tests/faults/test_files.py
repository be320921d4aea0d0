"""Files after faults: kills, full disks, several writers, damage, and metadata that was made up."""

import contextlib
import copy
import dataclasses
import io
import json
import os
import pickle
import threading
import time
import tracemalloc
import zipfile
from collections import Counter, OrderedDict

import numpy as np
import pytest

import xvarpro as xv
from tests.processes import start
from tests.support import CODE, decay_problem, decays, invoke, posix, product, rng, send, together
from xvarpro.core import trees
from xvarpro.errors import ProblemError, XvarproError
from xvarpro.fit.stored import FORMAT
from xvarpro.results import files

START, BOX = np.array([0.5, 8.0]), xv.sets.Box(0.0, 10.0)
PROBLEM = decay_problem(noise=0.01, lam=1e-6)


def model(theta, data):
    return decays(theta["rate"], data)


@pytest.fixture(scope="module")
def fit():
    over = {"rate": xv.sets.Box(np.zeros(2), np.array([10.0, 9.0]))}
    return xv.solve(of_tree(), {"rate": START}, over=over, algorithm=xv.algorithms.cr_varpro(), max_iter=12)


def same(a, b):
    """Whether two results hold the same, to the bit."""
    private = dict.fromkeys(("recipe", "_problem", "_weights", "_continuation", "_prepared"))
    x, y = (trees.partition((vars(fit) | private | {"_w": fit.w}, vars(fit.recipe))) for fit in (a, b))
    return len(x[0]) == len(y[0]) and all(map(np.array_equal, x[0], y[0])) and repr(a) == repr(b)


def failing(error):
    def write(file):
        file.write(b"half of it")
        file.flush()
        raise error

    return write


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("no"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(error, tmp_path):
    path = tmp_path / "kept"
    files.write_atomically(path, lambda file: file.write(b"old"))
    with pytest.raises(type(error)) as raised:
        files.write_atomically(path, failing(error))
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["kept"]
    if isinstance(error, OSError):
        assert (raised.value.errno, raised.value.filename) == (28, str(path))


@posix
def test_a_file_keeps_its_mode_and_its_links(tmp_path):
    path, link = tmp_path / "x", tmp_path / "link"
    path.write_bytes(b"old")
    path.chmod(0o600)
    link.symlink_to(path)
    files.write_atomically(link, lambda file: file.write(b"new"))
    assert link.is_symlink()
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    files.write_atomically(os.fsencode(tmp_path / "fresh"), lambda file: file.write(b"new"))
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "fresh").stat().st_mode == (tmp_path / "plain").stat().st_mode


@posix
def test_what_is_no_file_is_not_replaced(tmp_path):
    files.write_atomically("/dev/null", lambda file: file.write(b"gone"))
    assert not os.path.isfile("/dev/null")
    with pytest.raises(IsADirectoryError):
        files.write_atomically(tmp_path, lambda file: file.write(b"x"))
    with pytest.raises(FileNotFoundError, match="none/x"):
        files.write_atomically(tmp_path / "none" / "x", lambda file: file.write(b"x"))


# -- read after checks -------------------------------------------------------------------------------------------------


def npy(shape, content=b"", descr="<f8"):
    """An array's file with a header that may claim anything."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": descr, "fortran_order": False, "shape": shape})
    return out.getvalue() + content


def archive(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as out:
        for name, content in members.items():
            out.writestr(name, content)
    return path


def opened(path):
    """The metadata and the arrays of a file."""
    with np.load(path) as file:
        arrays = dict(file)
    return json.loads(str(arrays.pop("meta"))), arrays


def closed(path, meta, arrays):
    np.savez(path, meta=np.array(meta if isinstance(meta, str) else json.dumps(meta)), **arrays)


def made_up(meta):
    """The metadata with every value replaced by others, or left out."""
    return [put(meta, at, value) for at in places(meta) for value in MADE_UP if at or value is not ...]


HEADERS = [
    (npy((2**27,), b"\0" * 64), r"shape \(134217728,\) of float64, and the file holds 64 bytes"),
    (npy((10**30,)), "holds 0 bytes"),
    (npy((-3, -2, 2), b"\0" * 96), r"shape \(-3, -2, 2\)"),
    (npy((2,), b"\0" * 24), "holds 24 bytes"),
    (npy((1,), b"\0" * 8, "|O"), "dtype object"),
    (npy((1,), b"\0" * 8, [("a", "<f8")]), "dtype"),
    (b"\x93NUMPY\x02\x00" + npy((0,))[8:], "another version"),
    (b"text", "magic"),
]


def test_an_array_that_is_not_what_its_header_claims_is_not_read(tmp_path, subtests):
    for member, message in HEADERS:
        path = archive(tmp_path / "x.npz", {"x.npy": member})
        expected = pytest.raises(ProblemError, match=message)
        with subtests.test(message), expected, files.reading(path, "a test") as file:
            file.array("x")


def test_compressed_and_overlapping_arrays_are_refused(tmp_path):
    """A small file could hold any number of bytes in them."""
    member = npy((2**20,), bytes(2**23))
    path = archive(tmp_path / "x.npz", {"x.npy": member}, zipfile.ZIP_DEFLATED)
    with pytest.raises(ProblemError, match="x is compressed"), files.reading(path, "a test") as file:
        file.array("x")
    np.savez(path, x=np.ones(9))
    with pytest.raises(ProblemError, match="claim more bytes"), files.reading(path, "a test") as file:
        [file.array("x") for _ in range(9)]


def test_arrays_come_back_as_they_were(tmp_path):
    path = tmp_path / "x.npz"
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.float32(3.0), "c": np.zeros((0, 3), complex)}
    arrays["d"] = np.asfortranarray(arrays["a"])
    np.savez(path, **arrays, big=arrays["a"].astype(">f8"), name="text")
    with files.reading(path, "a test") as file:
        for name, x in arrays.items():
            back = file.array(name)
            assert (back.dtype, back.shape, back.tobytes("A")) == (x.dtype, x.shape, x.tobytes("A"))
        assert file.array("big").dtype == np.dtype("float64")
        assert file.text("name") == "text"
    for bad in ({"name": "none"}, {"name": "a", "shape": (2, 4)}, {"name": "a", "kinds": "i"}, {"name": "name"}):
        with pytest.raises(ProblemError), files.reading(path, "a test") as file:
            file.array(**bad)


# -- results -----------------------------------------------------------------------------------------------------------


def forever(path, small, large):
    while True:
        large.save(path)
        small.save(path)


@posix
@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.thorough)])
def test_a_result_survives_kills(kills, tmp_path):
    path, y = tmp_path / "fit.npz", rng(0).normal(size=(20, 10_000))
    small = xv.solve(PROBLEM, START, over=BOX, max_iter=3)
    wide = xv.separable(product, y, lam=1e-3)
    large = xv.solve(wide, np.eye(20, 8) / 8, over=xv.sets.L1Ball(1.0), max_iter=1)
    small.save(path)
    for i in range(kills):
        child = start(forever, path, small, large)
        child.process.join(0.05 + 0.2 * rng(i).random())
        assert child.process.is_alive()
        child.process.kill()
        child.process.join()
        assert xv.Result.load(path).n_iter in (small.n_iter, large.n_iter)
    assert {name.rpartition(".")[2] for name in os.listdir(tmp_path)} <= {"npz", "part"}


def test_what_killed_writers_left_is_removed_when_no_writer_can_be_at_work_on_it(fit, tmp_path):
    old, young, other = (tmp_path / f".{name}.part" for name in ("fit.npz.01", "fit.npz.02", "other.npz.01"))
    for path in (old, young, other):
        path.write_bytes(b"half")
    for path in (old, other):
        os.utime(path, (time.time() - 4000,) * 2)
    fit.save(tmp_path / "fit.npz")
    assert sorted(os.listdir(tmp_path)) == [young.name, other.name, "fit.npz"]


def test_several_writers_leave_a_whole_result(fit, tmp_path):
    path, errors = tmp_path / "fit.npz", []
    fit.save(path)

    def write():
        try:
            for _ in range(20):
                fit.save(path)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert same(xv.Result.load(path), fit)
    assert not errors
    assert os.listdir(tmp_path) == ["fit.npz"]


def outcome(path, content, fit):
    """What a file with that content is: refused with a reason, or a result, which can be used."""
    path.write_bytes(content)
    try:
        back = xv.Result.load(path)
    except ProblemError:
        return "refused"
    return "same" if same(back, fit) else "another"


COUNTS = pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.thorough)])


@COUNTS
def test_a_damaged_file_is_refused_or_changes_nothing(count, fit, tmp_path):
    """One bit that is flipped; what is cut off or overwritten is refused."""
    path, random, seen = tmp_path / "fit.npz", rng(count), Counter()
    fit.save(path)
    whole = path.read_bytes()
    for i in range(count):
        damaged = bytearray(whole)
        damaged[random.integers(len(whole))] ^= 1 << random.integers(8)
        seen[outcome(path, bytes(damaged), fit)] += 1
        if i % 2:
            assert outcome(path, whole[: random.integers(len(whole))], fit) == "refused"
            for at in random.integers(len(whole), size=20):
                damaged[at] ^= random.integers(1, 256)
            assert outcome(path, bytes(damaged), fit) == "refused"
    assert seen["another"] == 0
    assert seen["refused"] > 0.8 * count


def places(x, path=()):
    """Paths to all values of a JSON object."""
    yield path
    for key, child in x.items() if isinstance(x, dict) else enumerate(x) if isinstance(x, list) else ():
        yield from places(child, (*path, key))


def put(x, path, value):
    """A JSON object with another value at a path, without it where that is Ellipsis."""
    if not path:
        return value
    x = copy.copy(x)
    if value is ... and len(path) == 1:
        del x[path[0]]
    else:
        x[path[0]] = put(x[path[0]], path[1:], value)
    return x


MADE_UP = (
    None, True, -1, 99, 10**400, 1.5, 1e300, float("nan"), "x", "1e9", [], [3], {}, {"x": 1}, {"value": "x"},
    {"list": []}, ...,
)  # fmt: skip


@pytest.mark.parametrize("share", [25, pytest.param(1, marks=pytest.mark.thorough)])
def test_made_up_metadata_is_refused_or_verified(share, fit, tmp_path):
    """A result that loads can be printed, saved and verified."""
    path, problem, loaded = tmp_path / "fit.npz", of_tree(), 0
    fit.save(path)
    meta, arrays = opened(path)
    cases = made_up(meta)[::share]
    for case in cases:
        closed(path, case, arrays)
        try:
            back = xv.Result.load(path)
        except ProblemError:
            continue
        loaded += 1
        repr(back), back.save(tmp_path / "again.npz")
        assert back.w.shape == (2,)
        with contextlib.suppress(XvarproError):
            xv.verify(back, problem, rerun=False)
    assert 0 < loaded < len(cases) / 2


DEEP = f'{{"format": {FORMAT}, "theta": ' + '{"list": [' * 99 + "0" + "]}" * 99 + "}"


CONTENT = [
    (lambda meta, a: a.pop("w"), "no array w"),
    (lambda meta, a: a.update(w=np.array([{"a": 1}], dtype=object)), "w has dtype object"),
    (lambda meta, a: a.update(theta_0=np.ones(3)), r"theta has the shapes .*\(3,\).*and its start .*\(2,\)"),
    (lambda meta, a: a.update(theta_0=np.array(["a", "b"])), "theta_0 has dtype <U1"),
    (lambda meta, a: a.update(theta_0=np.array([1, 2])), "arrays of float64; got an array of shape .* of int64"),
    (lambda meta, a: a.update(w=np.ones(2, np.float32)), "dtype float32 after a solve in float64"),
    (lambda meta, a: a.update(theta_0=np.array([np.nan, 1.0])), "theta must hold finite arrays"),
    (lambda meta, a: a.update(theta0_0=np.array([np.inf, 1.0])), "theta0 must hold finite arrays"),
    (lambda meta, a: a.update(trace_value=np.ones(3)), r"trace_value has shape \(3,\), and \(13,\) is"),
    (lambda meta, a: a.update(trace_iteration=np.ones(0)), "trace has 0 entries"),
    (lambda meta, a: meta.update(status="HAPPY"), "no status HAPPY"),
    (lambda meta, a: meta.update(status="CONVERGED", value=float("nan")), "CONVERGED must be finite"),
    (lambda meta, a: meta.update(status="ROUNDING", gap_B=float("inf")), "ROUNDING must be finite"),
    (lambda meta, a: meta.update(n_iter=11), "trace has 13 entries after 11 iterations"),
    (lambda meta, a: meta.update(n_iter=10**19), "1000000000000000000..., a whole number of more than 64 bits"),
    (lambda meta, a: a.update(w=np.array(1.0)), r"w has shape \(\)"),
    (lambda meta, a: meta["counts"].update(x=1), "counts must have the fields values"),
    (lambda meta, a: meta.update(n_iter="x"), "n_iter of result must be of type int; got x"),
    (lambda meta, a: meta["recipe"].update(scale=-1.0), "scale of its recipe must be >= 0; got -1"),
    (lambda meta, a: meta["recipe"].update(problem="mine.py"), "a problem must be named .*; got 'mine.py'"),
    (lambda meta, a: meta["recipe"].update(over=True), "holds True, which is no value, array, container or class"),
    (lambda meta, a: meta.update(provenance={}), "provenance must have a backend"),
    (lambda meta, a: meta["recipe"].update(algorithm={"struct": "sets.Box", "fields": {}}), "algorithm of its rec"),
    (lambda meta, a: meta["recipe"]["over"]["dict"]["rate"]["fields"].update(x={"value": 1}), "argument 'x'"),
    (lambda meta, a: DEEP, "the fields"),
    (
        lambda meta, a: DEEP.replace('{"list": [' * 99, '{"list": [' * 10**5).replace("]}" * 99, "]}" * 10**5),
        "Recursion",
    ),
]


def test_made_up_content_is_refused_with_the_reason(fit, tmp_path, subtests):
    path = tmp_path / "fit.npz"
    fit.save(path)
    for change, message in CONTENT:
        meta, arrays = opened(path)
        found = change(meta, arrays)
        closed(tmp_path / "x.npz", found if isinstance(found, str) else meta, arrays)
        expected = f"x.npz is not a file that Result.save wrote.*{message}"
        with subtests.test(message), pytest.raises(ProblemError, match=expected):
            xv.Result.load(tmp_path / "x.npz")


def test_numbers_near_the_largest_are_loaded_and_verified(fit, tmp_path):
    """Whole ones of 64 bits; a float to the power of 2 raises where its product with itself is inf."""
    path = tmp_path / "fit.npz"
    fit.save(path)
    meta, arrays = opened(path)
    meta["recipe"].update(max_iter=2**63 - 1)
    closed(path, meta, arrays)
    assert xv.Result.load(path).recipe.max_iter == 2**63 - 1
    meta["recipe"].update(max_iter=12, tol=1e300)
    meta["verified"].update(condition=1e300)
    closed(path, meta, arrays)
    assert "end" in {check.what for check in xv.verify(path, of_tree()).checks}


def of_tree():
    return xv.separable(model, PROBLEM.lower.y, data=PROBLEM.data, lam=1e-6)


@pytest.mark.parametrize("n", [1, 10**5])
def test_a_trace_of_any_length_is_loaded(n, fit, tmp_path):
    trace = dataclasses.replace(fit.trace, **{f.name: np.zeros(n) for f in dataclasses.fields(fit.trace)})
    long = dataclasses.replace(fit, trace=trace, n_iter=n - 1)
    long.save(tmp_path / "fit.npz")
    assert same(xv.Result.load(tmp_path / "fit.npz"), long)


def test_a_claim_of_a_gigabyte_takes_no_memory(fit, tmp_path):
    fit.save(tmp_path / "fit.npz")
    with zipfile.ZipFile(tmp_path / "fit.npz") as file:
        members = {name: file.read(name) for name in file.namelist()}
    path = archive(tmp_path / "x.npz", members | {"w.npy": npy((2**27,), bytes(64))})
    tracemalloc.start()
    try:
        with pytest.raises(ProblemError, match=r"w has shape \(134217728,\)"):
            xv.Result.load(path)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()
    # arrays that the format has not are not looked at
    assert same(xv.Result.load(archive(path, members | {"zzz.npy": npy((2**40,)), "code.py": b"exit()"})), fit)


def test_folders_and_missing_files(tmp_path):
    with pytest.raises(ProblemError, match="a folder or a device"):
        xv.Result.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        xv.Result.load(tmp_path / "none.npz")


@COUNTS
def test_a_damaged_checkpoint_is_refused_or_changes_nothing(count, tmp_path):
    path, random, seen = tmp_path / "run.npz", rng(count), Counter()
    options = {"over": BOX, "algorithm": xv.algorithms.cr_varpro(), "tol": 0.0}
    whole = xv.solve(PROBLEM, START, **options, max_iter=9)
    xv.solve(PROBLEM, START, **options, max_iter=6, checkpoint=path, checkpoint_every=1)
    content = path.read_bytes()

    def resumed(exact=True):
        try:
            fit = xv.solve(PROBLEM, START, **options, max_iter=9, resume=path)
        except ProblemError:
            return "refused"
        equal = np.array_equal if exact else np.allclose  # another stride is another order of a sum
        return "same" if equal(fit.theta, whole.theta) and equal(fit.value, whole.value) else "another"

    assert resumed() == "same"
    for _ in range(count // 4):
        damaged = bytearray(content)
        damaged[random.integers(len(content))] ^= 1 << random.integers(8)
        path.write_bytes(damaged)
        seen[resumed()] += 1
    path.write_bytes(content)
    meta, arrays = opened(path)
    for case in made_up(meta)[:: max(1, 10_000 // count)]:
        closed(path, case, arrays)
        seen[resumed(exact=False)] += 1
    assert seen["another"] == 0
    assert seen["refused"] > count / 4


# -- code that a file names --------------------------------------------------------------------------------------------

MINE = f"import pathlib; pathlib.Path(__file__).with_name('RAN').touch()\n{CODE}"


@pytest.fixture
def named(tmp_path):
    """A file that names its problem by a path, and the folder of both."""
    (tmp_path / "mine.py").write_text(MINE)
    made = xv.problem.loading.load(str(tmp_path / "mine.py:decays"))
    xv.solve(made.problem, made.theta0, over=made.over).save(tmp_path / "fit.npz", problem="mine.py:decays")
    (tmp_path / "RAN").unlink()
    return tmp_path


def test_the_code_that_a_file_names_runs_only_if_it_is_trusted(named, monkeypatch):
    path, ran = named / "fit.npz", named / "RAN"
    for found in (path, xv.Result.load(path)):
        with pytest.raises(
            ProblemError, match=r"names its problem, mine.py:decays, which is code .*--trust.*--problem"
        ):
            xv.verify(found)
        with pytest.raises(ProblemError, match="must be named"):
            xv.verify(found, "")
    done = invoke("verify", path)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "--trust" in done.stderr
    assert not ran.exists()
    monkeypatch.chdir("/")  # a relative name begins in the folder of the file
    for found in (path, xv.Result.load(path)):
        verified = xv.verify(found, trust=True)
        assert verified.ok
        assert verified.notes[0] == "mine.py:decays was run, as the file names it and was trusted"
        ran.unlink()
    done = invoke("verify", path, "--trust")
    assert (done.exit_code, ran.exists()) == (0, True), done.output
    done = invoke("verify", path, "--problem", named / "mine.py:decays")
    assert (done.exit_code, "was trusted" in done.output) == (0, False)
    done = invoke("verify", path, "--problem", "mine.py:decays")
    assert (done.exit_code, "there is no file mine.py" in done.stderr) == (2, True)


def test_a_name_that_is_relative_to_the_current_folder_is_stored_as_seen_from_the_file(named, monkeypatch):
    monkeypatch.chdir(named)
    (named / "out").mkdir()
    fit = xv.Result.load("fit.npz")
    for path in ("out/fit.npz", named / "out/fit.npz"):
        fit.save(path, problem="mine.py:decays")
        assert xv.Result.load(path).recipe.problem == "../mine.py:decays"
    fit.save("out/again.npz")
    xv.Result.load("out/again.npz").save("again.npz")
    assert xv.Result.load("again.npz").recipe.problem == "mine.py:decays"
    for problem in (3, "mine.py", ":"):
        with pytest.raises(ProblemError, match=r"must be named package\.module:function"):
            fit.save("x.npz", problem=problem)
    assert not os.path.exists("x.npz")


# -- pickle, copies and other frameworks -------------------------------------------------------------------------------


def problem_and_start(name):
    backend = xv.backends.get(name)
    y = send(backend, PROBLEM.lower.y, "float32")
    data = {"t": send(backend, PROBLEM.data["t"], "float32")}
    problem = xv.separable(model, y, data=data, lam=1e-3, solver=xv.lower.SVD())
    return problem, {"rate": send(backend, START, "float32")}


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_results_and_problems_are_pickled_and_copied(name):
    problem, theta0 = problem_and_start(name)
    how = {"over": {"rate": BOX}, "algorithm": xv.algorithms.FrankWolfe(), "max_iter": 3}
    fit = xv.solve(problem, theta0, **how)
    assert fit.recipe
    for back in (pickle.loads(pickle.dumps(fit)), copy.deepcopy(fit), copy.copy(fit)):
        assert type(back.theta["rate"]) is type(fit.theta["rate"])
        assert same(back, fit)
        assert back.recipe.fingerprints == fit.recipe.fingerprints
    (w,) = pickle.loads(pickle.dumps(fit)).w_chunks()
    assert type(w) is type(fit.w)
    chunks, many = xv.RowChunks.cut(PROBLEM.data, PROBLEM.lower.y, rows=16), batch()
    for again in (lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy):
        assert xv.solve(again(problem), theta0, **how).value == fit.value
        assert [y.size for _, y in again(chunks).source()] == [16, 16, 8]
        assert repr(again(many)) == repr(many)
        np.testing.assert_array_equal(again(many).w, many.w)


def batch():
    y = np.stack([PROBLEM.lower.y, 2 * PROBLEM.lower.y])
    problem = xv.separable(together, y, data=PROBLEM.data, lam=1e-6)
    return xv.solve_many(problem, np.stack([START, START]), over=BOX, max_iter=3)


def solved(problem, theta0):
    return xv.solve(problem, theta0, over=BOX, max_iter=3), batch()


def test_results_and_problems_cross_processes():
    (there, many), (here, want) = start(solved, PROBLEM, START).returned(), solved(PROBLEM, START)
    assert there.value == pytest.approx(here.value)
    assert there.recipe.fingerprints == here.recipe.fingerprints
    np.testing.assert_allclose(many.w, want.w)


def test_a_result_is_loaded_for_another_framework(tmp_path):
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)).double()
    theta0 = net.state_dict()

    def outputs(theta, data):
        hidden = torch.tanh(data @ theta["0.weight"].T + theta["0.bias"])
        return torch.cat([hidden, hidden @ theta["1.weight"].T + theta["1.bias"]], dim=1)

    inputs = torch.as_tensor(rng(0).normal(size=(20, 2)))
    fit = xv.solve(xv.separable(outputs, inputs[:, 0] ** 2, data=inputs, lam=1e-3), theta0, max_iter=3)
    path = tmp_path / "fit.npz"
    fit.save(path)
    back = xv.Result.load(path, like=theta0)
    assert isinstance(back.theta, OrderedDict)
    assert isinstance(back.w, torch.Tensor)
    assert torch.equal(back.w, fit.w)
    net.load_state_dict(back.theta)
    for name, x in net.state_dict().items():
        assert torch.equal(x, fit.theta[name])
    theirs = {name: np.zeros(x.shape) for name, x in theta0.items()}
    assert type(xv.Result.load(path, like=theirs).theta["0.bias"]) is np.ndarray
    for wrong in ({}, {**theirs, "more": np.ones(1)}, {**theirs, "0.bias": np.ones(1)}, theirs["0.bias"]):
        with pytest.raises(ProblemError, match="like must hold arrays of the shapes"):
            xv.Result.load(path, like=wrong)
    with pytest.raises(XvarproError, match="lose digits"):
        xv.Result.load(path, like={name: send(xv.backends.get("jax"), x, "float32") for name, x in theirs.items()})
