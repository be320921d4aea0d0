"""The same bits from run to run, what a file stores of a solve, and what its verification finds."""

import inspect
import json
import re
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.backends import adapters
from xvarpro.backends.numpy import NumPyBackend
from xvarpro.backends.torch_settings import Switch
from xvarpro.core import trees
from xvarpro.core.namespace import device
from xvarpro.core.struct import Struct
from xvarpro.errors import ModelError, ProblemError
from xvarpro.fit import serialization as stored
from xvarpro.results.recipe import Fingerprints
from xvarpro.sets import Box, CappedSimplex, L1Ball, L2Ball

from .processes import start
from .support import CODE, T, decay_problem, decays, invoke, rng, send

EAGER = ("numpy", "array-api-strict", "torch")
START, BOX, PAPER = np.array([0.5, 8.0]), Box(0.0, 10.0), xv.algorithms.cr_varpro()
PROBLEM = decay_problem(noise=0.01, lam=1e-6)


def solve(problem=PROBLEM, theta0=START, **options):
    return xv.solve(problem, theta0, **{"over": BOX, "algorithm": PAPER, "max_iter": 12, "tol": 0.0, **options})


def bits(fit):
    t = fit.trace
    arrays = (t.value, t.gap_A, t.gap_B, t.alpha_A, t.alpha_B, *map(xv.backends.to_numpy, trees.leaves(fit.theta)))
    return [x.tobytes() for x in arrays]


def fresh(name):
    fit = solve(backend=name, deterministic=True)
    return bits(fit), fit.provenance["determinism"]


@pytest.mark.parametrize("name", EAGER)
def test_a_fresh_process_gives_the_same_bits(name):
    assert start(fresh, name).returned() == fresh(name) == (fresh(name)[0], {"held": True, "unpromised": []})


def test_a_deterministic_backend_is_one_and_computes_where_theta_is():
    for name in (*EAGER, "jax"):
        held = xv.backends.get(name).deterministic()
        assert adapters.is_deterministic(held)
        assert held is held.deterministic() is xv.backends.get(name).deterministic()
        x = send(xv.backends.get(name), np.ones(3), "float32")
        moved = xv.backends.exchange.move(x, held)
        assert type(moved) is type(x)
        assert device(moved) == device(x)


def test_every_entry_takes_a_deterministic_backend():
    held = xv.backends.get("torch").deterministic()
    theta0 = send(xv.backends.get("torch"), START)
    value, _ = xv.value_and_gradient(PROBLEM, theta0, held)
    assert float(value) == solve(theta0=theta0, max_iter=0, deterministic=True).value
    t = np.linspace(0.0, 1.0, 9)
    batch = xv.separable(lambda theta, t: xv.array_namespace(theta).exp(-theta[:, None, :] * t[None, :, None]),
                         np.ones((2, 9)), data=t, lam=0.1)  # fmt: skip
    fit = xv.solve_many(batch, np.ones((2, 1)), max_iter=2, backend=held)
    assert fit.provenance["determinism"]["held"] is True


def test_a_backend_without_such_a_mode_refuses():
    class Plugin(NumPyBackend):
        name = "plugged"
        deterministic = xv.backends.Backend.deterministic

    with pytest.raises(ProblemError, match="a deterministic mode, and plugged has none"):
        solve(backend=Plugin(), deterministic=True)
    assert solve(backend=Plugin(), max_iter=1).provenance["determinism"] == {"held": False, "unpromised": []}


def test_what_torch_has_no_deterministic_algorithm_for_is_refused_by_its_name():
    """In one sentence, also in a solve; other errors pass as they are."""
    import torch

    def put(x):
        return x.clone().put_(torch.zeros(1, dtype=torch.int64), x.reshape(-1)[:1])

    def another(x):
        raise RuntimeError("of another kind")

    def alone(fun):
        with xv.backends.get("torch").deterministic().scope("float64"):
            fun(torch.ones(2, 3))

    def in_a_solve(fun):
        problem = xv.separable(lambda theta, data: fun(theta), np.ones((2, 1)))
        xv.solve(problem, np.ones((2, 3)), backend="torch", deterministic=True)

    for run in (alone, in_a_solve):
        with pytest.raises(ProblemError, match=r"^deterministic=True needs .*put_ ") as said:
            run(put)
        assert str(said.value).count(". ") == 1
    with pytest.raises(RuntimeError, match=r"^of another kind$"):
        alone(another)
    with pytest.raises(ModelError, match="of another kind"):
        in_a_solve(another)


# -- no global state ---------------------------------------------------------------------------------------------------


def test_solves_that_overlap_restore_what_was_there_before_the_first():
    switch = {"on": False}
    held = Switch(lambda: switch["on"], lambda: switch.update(on=True), lambda before: switch.update(on=before))
    first, second = held(), held()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert switch["on"]
    second.__exit__(None, None, None)
    assert not switch["on"]


def test_what_is_not_promised_is_said():
    gpu = SimpleNamespace(platform="gpu")
    (said,) = xv.backends.get("jax").deterministic().nondeterministic_operations(gpu)
    assert "what runs before the loop" in said
    (said,) = adapters.uncompiled(xv.backends.get("jax")).deterministic().nondeterministic_operations(gpu)
    assert "every operation" in said
    assert adapters.is_deterministic(adapters.uncompiled(xv.backends.get("jax").deterministic()))
    assert "cuSOLVER" in xv.backends.get("torch").nondeterministic_operations("cuda:0")[0]


def test_torchs_rows_are_added_as_its_sparse_product_does():
    import torch

    from xvarpro.backends.torch import _added_rows

    torch.manual_seed(0)
    rows, columns = torch.tensor([0, 2, 0, 2, 2]), torch.tensor([1, 0, 1, 1, 1])
    data, w = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((5,), (2, 3)))
    ways = [xv.backends.get("torch").sparse_product(rows, columns, data, (3, 2), w),
            _added_rows(rows, columns, data, (3, 2), w)]  # fmt: skip
    torch.testing.assert_close(*ways)
    torch.testing.assert_close(*(torch.autograd.grad(x.sin().sum(), (data, w)) for x in ways))


# -- files ------------------------------------------------------------------------------------------------------------


def kept(fit, path, **options):
    fit.save(path / "fit.npz", **options)
    return xv.Result.load(path / "fit.npz")


def equal(a, b):
    x, s = trees.partition(a)
    y, t = trees.partition(b)
    return s == t and len(x) == len(y) and all(map(np.array_equal, x, y))


def test_a_recipe_goes_through_a_file(tmp_path):
    theta0 = {"rate": np.array([0.5, 8.0]), "net": [np.array(0.1), (np.ones(2),)]}
    over = {"rate": Box(np.zeros(2), np.array([9.0, 10.0])), "net": [None, (CappedSimplex(3.0),)]}
    problem = xv.separable(lambda theta, data: decays(theta["rate"], data), PROBLEM.lower.y, data=PROBLEM.data)
    fit = xv.solve(problem, theta0, over=over, algorithm=xv.algorithms.FrankWolfe(), tol=1e-3, max_iter=3)
    back = kept(fit, tmp_path, problem="mine.py:f")
    again = kept(back, tmp_path).recipe
    for recipe in (back.recipe, again):
        assert equal(recipe.theta0, theta0)
        assert equal(recipe.over, over)
        assert recipe.algorithm == xv.algorithms.FrankWolfe()
        assert (recipe.tol, recipe.max_iter, recipe.problem) == (1e-3, 3, "mine.py:f")
        assert recipe.fingerprints == fit.recipe.fingerprints
        assert recipe.scale == fit.recipe.scale
        energy = 0.5 * np.sum(PROBLEM.lower.y**2)  # two orders of summation part by n eps at most
        assert recipe.scale >= (1 - PROBLEM.lower.y.size * np.finfo(float).eps) * energy
    theta0["rate"][:] = 7.0
    assert fit.recipe.theta0["rate"].tolist() == [0.5, 8.0]


def exported():
    """Examples of every exported set, norm, step rule and algorithm."""
    for module in (xv.sets, xv.sets.norms, xv.steps, xv.algorithms):
        for name in getattr(module, "__all__", vars(module)):
            cls = getattr(module, name)
            if isinstance(cls, type) and issubclass(cls, Struct) and cls is not Struct and not inspect.isabstract(cls):
                made = cls.examples((3, 3)) if issubclass(cls, xv.sets.Set) else (cls(),)
                yield from made


def private(x):
    """The strings of a JSON value, keys included, that look like the path of a module."""
    if isinstance(x, dict):
        return private([*x, *x.values()])
    if isinstance(x, list):
        return [s for part in x for s in private(part)]
    return [x] if isinstance(x, str) and re.search(r"xvarpro\.|^[\w.]+:\w+$", x) else []


def test_everything_that_is_exported_goes_through_json_by_its_public_name(subtests):
    for obj in exported():
        with subtests.test(repr(obj)):
            goes_through_json(obj)


def goes_through_json(obj):
    arrays = {}
    text = json.dumps(stored.encode(obj, "x", arrays))
    back = stored.decode(json.loads(text), "x", arrays)
    if isinstance(obj, xv.sets.Oracle):  # around functions, which a file cannot store
        assert isinstance(back, stored.Opaque)
        assert type(obj).__name__ in back.what
    else:
        assert type(back) is type(obj)
        assert equal(back, obj)
        assert not private(json.loads(text))


def through_json(obj, arrays=None):
    arrays = {} if arrays is None else arrays
    return stored.decode(json.loads(json.dumps(stored.encode(obj, "x", arrays), allow_nan=False)), "x", arrays)


def test_values_go_through_json_as_what_they_are():
    values = [1, 2.5, "x", None, True, np.bool_(False), np.int64(7), np.float32(0.5), Fraction(1, 4), -np.inf, np.inf]
    back = through_json({"a": values, "b": tuple(values), "c": {}})
    want = [1, 2.5, "x", None, True, False, 7, 0.5, 0.25, -np.inf, np.inf]
    assert back == {"a": want, "b": tuple(want), "c": {}}
    assert [type(x) for x in back["a"]] == [type(x) for x in want]
    assert np.isnan(through_json(np.nan))


def test_arrays_of_several_trees_share_a_file():
    """Numbered by the tree that they are of."""
    arrays = {"y_0": np.zeros(1)}
    for name in ("x", "xy", "y"):
        text = stored.encode([np.full(2, len(name)), {"a": np.full(3, len(name))}], name, arrays)
        first, rest = stored.decode(text, name, arrays)
        assert first.tolist() == [len(name)] * 2
        assert rest["a"].tolist() == [len(name)] * 3
    assert sorted(arrays) == ["x_0", "x_1", "xy_0", "xy_1", "y_0", "y_1", "y_2"]


class Pair(NamedTuple):
    a: int
    b: int


class Sorted(list):
    pass


@pytest.mark.parametrize("obj", [{"a": 1, 2: 3}, {1: 2}, Pair(1, 2), Sorted([1]), {1, 2}, len, 1j], ids=repr)
def test_what_json_cannot_hold_is_named(obj):
    lost = stored.Opaque(repr(obj))
    assert through_json(obj) == lost
    assert through_json(lost) == lost
    assert through_json([1, (lost,)]) == [1, (lost,)]
    assert stored.opaque([1, (lost, stored.Opaque("more"))]) == lost
    assert stored.opaque([1, (2,)]) is None


def test_a_set_around_something_that_is_lost_is_lost():
    box = {"struct": "sets.Box", "fields": {"lower": {"value": 0.0}, "upper": {"opaque": "of a bound"}}}
    assert stored.decode(box, "x", {}) == stored.Opaque("Box with of a bound")


def test_a_class_that_is_not_imported_is_not_looked_up():
    found = stored.decode({"struct": "os:system", "fields": {}}, "x", {})
    assert found == stored.Opaque("os:system, a class that has not been imported")


@pytest.mark.parametrize("name", EAGER)
def test_fingerprints_are_those_of_the_bits(name):
    backend = xv.backends.get(name)
    moved = replace(PROBLEM, data={"t": send(backend, T)})
    assert Fingerprints(moved, send(backend, START)) == Fingerprints(PROBLEM, START)
    turned = replace(PROBLEM, data={"t": T.astype(">f8")[::-1][::-1]})
    assert Fingerprints(turned, START) == Fingerprints(PROBLEM, START)
    for other in (T.astype("float32"), T[None], np.nextafter(T, 9.0)):
        found = Fingerprints(replace(PROBLEM, data={"t": other}), START)
        assert {k for k, v in found.items() if v != Fingerprints(PROBLEM, START)[k]} == {"data['t']"}


def rewritten(path, change):
    """The file with its meta data and arrays changed by hand."""
    with np.load(path) as file:
        arrays = dict(file)
    meta = json.loads(str(arrays.pop("meta")))
    change(meta, arrays)
    np.savez(path, meta=np.array(json.dumps(meta)), **arrays)


def test_a_result_and_a_checkpoint_are_told_apart(tmp_path):
    fit, checkpoint = tmp_path / "fit.npz", tmp_path / "checkpoint.npz"
    solve(max_iter=2, checkpoint=checkpoint).save(fit)
    with pytest.raises(ProblemError, match=r"checkpoint.npz is a checkpoint of a solve.*xv.solve\(.*resume='.*'\)"):
        xv.Result.load(checkpoint)
    with pytest.raises(ProblemError, match=r"it is a result, .* xv.solve\(problem, xv.Result.load\(path, like=theta0"):
        solve(max_iter=2, resume=fit)


# -- verification ------------------------------------------------------------------------------------------------------


def failed(found):
    assert found.ok is not bool(found.failures)
    return {check.what: check.sentence for check in found.failures}


def checked(found):
    return {check.what for check in found.checks}


@pytest.mark.parametrize("name", EAGER)
def test_a_result_is_verified_on_another_backend(name, tmp_path):
    found = xv.verify(kept(solve(), tmp_path), PROBLEM, backend=name)
    assert found.ok, str(found)
    assert found.provenance["backend"] == name
    assert found.rerun.n_iter == found.rerun.recipe.max_iter
    assert ("bits" in checked(found)) is (name == "numpy")
    record = json.loads(json.dumps(found.record(), allow_nan=False))
    assert record["ok"] is True
    assert str(found).endswith(f"verified on {name} in float64: all {len(found.checks)} checks passed")


@pytest.mark.frameworks
def test_a_compiled_loop_gives_the_same_bits_and_is_verified():
    problem = decay_problem(noise=0.01, lam=1e-6, solver=xv.lower.SVD())
    fit = solve(problem, backend="jax", deterministic=True)  # one program for all that follows
    found = xv.verify(fit, problem)
    assert found.ok, str(found)
    assert "bits" in checked(found)
    found = xv.verify(fit, problem, backend="numpy")
    assert found.ok, str(found)
    assert "bits" not in checked(found)


CHANGED = {  # a change of a result, and the checks that see it without a second solve
    "theta": (lambda fit: {"theta": fit.theta + 1e-6}, {"gap", "w"}),  # the objective is flat near a minimum
    "w": (lambda fit: {"_w": fit.w * (1 + 1e-6)}, {"w"}),
    "value": (lambda fit: {"value": fit.value * (1 + 1e-5)}, {"objective"}),
    "infeasible": (lambda fit: {"theta": fit.theta + np.array([0.0, 10.0])}, {"feasibility"}),
}


def test_a_changed_result_fails(subtests):
    fit = solve(max_iter=200)
    for name, (change, checks) in CHANGED.items():
        with subtests.test(name):
            found = xv.verify(replace(fit, **change(fit)), PROBLEM, rerun=False)
            assert set(failed(found)) == checks
            first, *rest = failed(found)
            more = f"; and {', '.join(rest)}" if rest else ""
            assert found.verdict == f"not verified on numpy in float64: {first}: {failed(found)[first]}{more}"


def test_a_result_of_a_loss_is_verified_with_its_problem_stated_either_way(tmp_path):
    fit = xv.solve_robust(PROBLEM, START, over=BOX, loss=xv.losses.Huber())
    fit.save(tmp_path / "fit.npz")
    stated = replace(PROBLEM, lower=replace(PROBLEM.lower, loss="huber"))
    for found in (xv.verify(fit, PROBLEM), xv.verify(tmp_path / "fit.npz", PROBLEM), xv.verify(fit, stated)):
        assert found.ok
        assert "bits" in checked(found)
    another = replace(PROBLEM, lower=replace(PROBLEM.lower, loss=xv.losses.Cauchy(fit.loss.scale)))
    assert set(failed(xv.verify(fit, another, rerun=False))) >= {"fingerprints", "objective"}


def total(theta):
    return xv.array_namespace(theta).sum(theta)


@pytest.mark.parametrize(
    ("problem", "names"),
    [
        (replace(PROBLEM, data={"t": np.nextafter(T, 9.0)}), "data['t']"),
        (replace(PROBLEM, lower=replace(PROBLEM.lower, y=PROBLEM.lower.y + 1e-3)), "lower.y"),
        (replace(PROBLEM, lower=replace(PROBLEM.lower, lam=2e-6)), "lower.lam"),
        (replace(PROBLEM, data={"t": T, "s": T}), "data['s']"),
        (replace(PROBLEM, data={"t": T + 1e-9}, mu=1.0, R=total, compress=False), "compress, data['t'], mu"),
    ],
)
def test_another_problem_fails(problem, names):
    found = xv.verify(solve(), problem)
    assert failed(found)["fingerprints"] == f"differ: {names}"
    assert found.rerun is None


def test_another_model_fails_by_its_values():
    other = replace(PROBLEM, lower=replace(PROBLEM.lower, M=lambda theta, data: decays(theta * (1 + 1e-7), data)))
    assert {"objective", "gap", "w", "end", "bits"} >= set(failed(xv.verify(solve(), other))) >= {"w", "end", "bits"}


def test_a_changed_file_fails(tmp_path):
    path = tmp_path / "fit.npz"
    solve().save(path)
    rewritten(path, lambda meta, arrays: arrays["theta0_0"].__iadd__(1e-9))
    found = xv.verify(path, PROBLEM)
    assert failed(found) == {"fingerprints": "differ: theta0"}
    assert found.rerun is None

    def other(meta, arrays):
        meta["recipe"]["algorithm"]["fields"]["step"]["fields"]["delta"]["value"] = 0.7

    solve().save(path)
    rewritten(path, other)
    found = xv.verify(path, PROBLEM)
    assert set(failed(found)) == {"end", "bits"}
    assert re.fullmatch(r"MAX_ITER after 12 iterations stored, .* found; theta to .*", found.notes[-1])


def test_one_bit_fails_where_the_same_bits_are_promised():
    fit = solve()
    value = fit.trace.value.copy()
    value[3] = np.nextafter(value[3], 0.0)
    other = replace(fit, trace=replace(fit.trace, value=value))
    assert set(failed(xv.verify(other, PROBLEM))) == {"bits"}
    elsewhere = {**fit.provenance, "host": {**fit.provenance["host"], "processor": "another"}}
    assert xv.verify(replace(other, provenance=elsewhere), PROBLEM).ok


def test_the_tolerance_decides():
    assert xv.verify(solve(), PROBLEM, backend="torch", dtype="float32").ok
    fit = solve()
    off = replace(fit, value=fit.value * (1 + 1e-5))
    assert set(failed(xv.verify(off, PROBLEM))) == {"objective", "end"}
    assert xv.verify(off, PROBLEM, tolerance=1e-4).ok
    with pytest.raises(ProblemError, match="tolerance must be"):
        xv.verify(fit, PROBLEM, tolerance=-1.0)


def test_a_float32_result_on_the_boundary_is_verified_in_float64():
    y = rng(0).normal(size=(6, 9)).astype("float32")
    problem = xv.separable(lambda theta, data: theta, y, lam=0.1)
    start = 0.1 * rng(1).normal(size=(6, 4)).astype("float32")
    fit = xv.solve(problem, start, over=L2Ball(1.0), algorithm=xv.algorithms.SpectralProjectedGradient(), max_iter=30)
    assert np.linalg.norm(fit.theta.astype("float64")) > 1.0 - 1e-6
    found = xv.verify(fit, problem, dtype="float64")
    assert found.ok, str(found)
    assert found.provenance["dtype"] == "float64"


def test_what_a_file_cannot_store_is_needed(tmp_path):
    ball = L1Ball(2.0)
    problem = xv.separable(lambda theta, data: theta, rng(0).normal(size=(6, 9)), lam=0.1)
    over = xv.sets.Oracle(ball.lmo, 4.0, ball.violation)
    fit = xv.solve(problem, np.eye(6, 3) / 3, over=over, algorithm=PAPER, max_iter=3)
    assert xv.verify(fit, problem).ok
    back = kept(fit, tmp_path)
    with pytest.raises(ProblemError, match=r"does not store Oracle with .*returns \(problem, theta0, over\)"):
        xv.verify(back, problem)
    with pytest.raises(ProblemError, match="the result does not name it: pass the problem"):
        xv.verify(back)
    path = tmp_path / "plain.npz"
    solve().save(path)
    rewritten(path, lambda meta, arrays: meta["recipe"].update(algorithm={"opaque": "mine"}))
    with pytest.raises(ProblemError, match="does not store mine: pass rerun=False"):
        xv.verify(path, PROBLEM)
    assert xv.verify(path, PROBLEM, rerun=False).ok


def test_a_saved_file_holds_no_private_module_path_and_names_its_format(tmp_path):
    path = tmp_path / "fit.npz"
    solve(algorithm=xv.algorithms.FrankWolfe()).save(path, problem="here.py:f")
    with np.load(path) as file:
        meta = json.loads(str(file["meta"]))
    assert meta["recipe"]["over"]["struct"] == "sets.Box"
    assert private(meta) == ["here.py:f"]
    rewritten(path, lambda meta, arrays: meta.update(format=99))
    with pytest.raises(ProblemError, match=r"reads format \d+; .*fit.npz has format 99: use the version"):
        xv.Result.load(path)


def state(folder, ridge="1e-6", start="0.5"):
    path = folder / "mine.py"
    path.write_text(CODE.replace("1e-6", ridge).replace("0.5", start))
    return f"{path}:decays"


def test_the_command_verifies(tmp_path):
    def verified(name, *options):
        done = invoke("verify", tmp_path / f"{name}.npz", "--trust", *options)
        return done.exit_code, done.stdout

    name = state(tmp_path)
    done = invoke("compare", name, "--backends", "numpy,torch", "--iterations", 3, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    code, said = verified("torch", "--backend", "numpy", "--out", tmp_path / "found.json")
    assert (code, "verified on numpy in float64" in said) == (0, True)
    assert json.loads((tmp_path / "found.json").read_text())["ok"] is True
    assert "bits" in verified("numpy")[1]
    code, said = verified("numpy", "--no-run")
    assert (code, "again" in said) == (0, False)
    state(tmp_path, start="0.65")
    code, said = verified("numpy", "--no-run")
    assert (code, "returns another theta0; the stored start is used" in said) == (0, True)
    (tmp_path / "other.py").write_text(CODE.replace("np.array([0.5, 8.0])", '{"k": np.array([0.5, 8.0])}'))
    with pytest.raises(ProblemError, match=r"whose theta has theta; got .*other\.py:decays, whose .* has theta\['k'\]"):
        xv.verify(tmp_path / "numpy.npz", f"{tmp_path}/other.py:decays")
    state(tmp_path, ridge="1.5e-5")  # of other lengths: Python compares sizes and seconds
    code, said = verified("numpy", "--no-run")
    assert (code, "fingerprints: differ: lower.lam" in said) == (1, True)


def inexact():
    A = rng(3).normal(size=(60, 5))
    problem = xv.separable(lambda theta, A: A * xv.array_namespace(theta).exp(theta), rng(2).normal(size=60), data=A,
                           lam=0.1, solver=xv.lower.LSMR())  # fmt: skip
    return xv.solve(problem, np.zeros(5), over=Box(-1.0, 1.0), max_iter=20), problem


def on_torch(deterministic):
    return lambda: (solve(theta0=send(xv.backends.get("torch"), START), deterministic=deterministic), PROBLEM)


@pytest.mark.parametrize(
    ("make", "by_bits", "n_iter"),
    [
        (on_torch(True), True, 12),
        (on_torch(False), False, 12),
        (lambda: (solve(callback=lambda moment: moment.iteration == 5), PROBLEM), True, 5),
        (lambda: (solve(trace_every=5), PROBLEM), True, 12),
        (inexact, True, None),
    ],
    ids=["Torch, deterministic", "Torch", "stopped", "a trace with gaps", "an inexact lower level"],
)
def test_solves_are_verified_as_far_as_they_went_and_by_the_bits_that_are_promised(make, by_bits, n_iter):
    found = xv.verify(*make())
    assert found.ok, str(found)
    assert ("bits" in checked(found)) is by_bits
    assert n_iter in (None, found.rerun.n_iter)
