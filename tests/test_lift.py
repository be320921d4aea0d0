"""Problems that are stated for one, in a batch: those of the batch form, and of a loop of solves."""

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.batch.prepare import prepare

from .support import decays, error, host, rng, together
from .test_many import BOX, THETA, T, noisy, single, start, stated

lifted = xv.many.lifted


@pytest.mark.parametrize("k", [0, 2])
def test_equals_the_batch_form(backend, k):
    y = noisy(k=k)
    want = xv.solve_many(xv.separable(together, y, data={"t": T}), start(), over=BOX, tol=1e-10)
    problem = lifted(xv.separable(decays, xv.Each(y), data={"t": T}))
    fit = xv.solve_many(problem, start(), over=BOX, tol=1e-10, backend=backend)
    assert fit.success.all()
    np.testing.assert_allclose(host(fit.value), want.value, rtol=1e-10)
    np.testing.assert_allclose(host(fit.theta), want.theta, rtol=1e-5)
    np.testing.assert_allclose(host(fit.w), want.w, rtol=1e-4)


@pytest.mark.parametrize("backend", ["numpy", "array-api-strict"])
def test_functions_are_called_once_for_all_or_the_result_says_why_not(backend):
    y, calls, found = noisy(), [], []

    def rolled(theta, data):  # by all entries of a design in one line: the one reading that no rule is for
        calls.append(theta)
        xp = xv.array_namespace(theta)
        return xp.roll(xp.roll(decays(theta, data), 1), -1)

    for M in (decays, rolled):
        problem = lifted(xv.separable(M, xv.Each(y), data={"t": T}))
        found.append(xv.solve_many(problem, start(), over=BOX, backend=backend, max_iter=4))
    at_once, one_by_one = found
    assert at_once.method == "LevenbergMarquardt(damping=0.001)"
    assert one_by_one.method == (
        f"{at_once.method}, functions called for one problem after the other (all entries of an array in one line)"
    )
    np.testing.assert_allclose(host(one_by_one.theta), host(at_once.theta), rtol=1e-9)
    assert len(calls) > 7 * int(host(one_by_one.n_iter).max())


def test_a_target_that_all_share_and_data_of_each(backend):
    times = T * np.linspace(0.8, 1.2, 5)[:, None]
    lam, y = np.linspace(0.0, 0.1, 5), noisy(k=2)[0]
    problem = xv.separable(decays, y, data={"t": xv.Each(times), "name": "decay"}, lam=xv.Each(lam))
    fit = xv.solve_many(lifted(problem), start(5), over=BOX, tol=1e-10, backend=backend)
    for i in range(5):
        one = xv.solve(xv.separable(decays, y, data={"t": times[i]}, lam=lam[i]), start()[0], over=BOX, tol=1e-10)
        assert host(fit.value)[i] == pytest.approx(one.value, rel=1e-10)
        np.testing.assert_allclose(host(fit.theta)[i], one.theta, rtol=1e-5)
        np.testing.assert_allclose(host(fit.w)[i], one.w, rtol=1e-4)


def test_a_shared_target_is_held_once():
    y, seen = noisy(1)[0], []

    class Watch(type(xv.backends.get("numpy"))):
        def asarray(self, x, **how):
            out = super().asarray(x, **how)
            seen.append(out.size)
            return out

    problem = lifted(xv.separable(decays, y * 1e9, data={"t": T}))  # in units that are changed
    fit = xv.solve_many(problem, start(100), over=BOX, backend=Watch())
    assert fit.success.all()
    assert max(seen) <= 100 * 2 * 2  # Gauss-Newton matrices; targets for all would have 100 len(T)
    np.testing.assert_allclose(fit.w, np.tile(fit.w[0], (100, 1)), rtol=1e-12)


@pytest.mark.parametrize("kind", ["separable", "ridged", "penalised", "bilevel", "both ridged"])
def test_gradients_are_those_of_the_batch_form(backend, kind):
    """Of two leaves and two levels, of targets and penalties that are functions."""
    one, whole = single(kind, 0), stated(kind)(slice(None))

    def level(level, given):
        y, lam = given.y, given.lam
        return xv.Level(level.M, y if callable(y) and level.y is None else level.y if callable(y) else xv.Each(y),
                        xv.Each(lam) if np.ndim(lam) else lam, level.Omega)  # fmt: skip

    lower = level(one.lower, whole.lower)
    if one.upper is not None:
        problem = xv.bilevel(lower=lower, upper=level(one.upper, whole.upper), data=one.data)
    else:
        problem = xv.separable(
            lower.M, lower.y, data=one.data, lam=lower.lam, Omega=lower.Omega, R=one.R, mu=one.mu
        )  # fmt: skip
    plain = prepare(whole, THETA, backend=xv.backends.get("numpy"))
    want, x = plain.assemble(plain.problem, plain.region), plain.theta
    want = want.local(x)
    got = objective_of(lifted(problem), backend)
    for name in ("value", "grad", "curvature"):
        assert error(host(getattr(got, name)), getattr(want, name)) <= 1e-11


def objective_of(problem, backend):
    prepared = prepare(problem, THETA, backend=backend)
    with backend.scope("float64"):
        return prepared.assemble(prepared.problem, prepared.region).local(prepared.theta)


def test_structured_designs_become_dense(backend):
    def M(theta, data):
        xp = xv.array_namespace(theta)
        return xv.operators.BlockDiagonal([xp.exp(-theta[:1] * data[:, None]), xp.exp(-theta[1:] * data[:, None])])

    y = rng(0).normal(size=(3, 2 * T.size)) + 3
    fit = xv.solve_many(lifted(xv.separable(M, xv.Each(y), data=T)), start(3), over=BOX, tol=1e-9, backend=backend)
    for i in range(3):
        one = xv.solve(xv.separable(M, y[i], data=T), start()[0], over=BOX, tol=1e-9)
        assert host(fit.value)[i] == pytest.approx(one.value, rel=1e-9)


def test_what_does_not_fit_is_refused():
    with pytest.raises(xv.errors.ProblemError, match=r"Mark one per problem, xv.Each\(y\)"):
        lifted(xv.separable(decays, noisy(k=2), data={"t": T}))
    with pytest.raises(xv.errors.ProblemError, match="must come from"):
        lifted(None)
    with pytest.raises(xv.errors.ProblemError, match=r"with b = 3, or 1 for all; got \(7, 30\)"):
        xv.solve_many(lifted(xv.separable(decays, xv.Each(noisy()), data={"t": T})), start(3), over=BOX)
    with pytest.raises(xv.errors.ModelError, match=r"xv\.many\.lifted makes a batch of functions of one problem"):
        xv.solve_many(xv.separable(lambda theta, t: theta @ theta, noisy(), data=T), start(), over=BOX)
    for marked in ({"y": xv.Each(noisy())}, {"data": {"t": xv.Each(T)}}, {"lam": xv.Each(np.ones(7))}):
        problem = xv.separable(decays, **({"y": noisy()[0], "data": {"t": T}} | marked))
        with pytest.raises(xv.errors.ProblemError, match=r"Use xv\.solve_many for a batch"):
            xv.solve(problem, start()[0])


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_batch_of_none_has_no_design(name):
    problem = lifted(xv.separable(decays, noisy()[0], data={"t": T}))
    with pytest.raises(xv.errors.ProblemError, match="one problem or more"):
        xv.solve_many(problem, start(0), over=BOX, backend=name)
