"""Data in parts: faults planted in what members exchange are caught, and no member waits for another in vain."""

import numpy as np
import pytest

import xvarpro as xv
from xvarpro import conformance
from xvarpro.backends.group import Group
from xvarpro.driver.prepare import Prepared
from xvarpro.errors import GroupError
from xvarpro.lower.accumulation import Triangle
from xvarpro.objective import reductions
from xvarpro.objective.reduced import Reduced
from xvarpro.problem import column_chunks
from xvarpro_conformance.checks import distributed
from xvarpro_conformance.members import together

FAULTS = {
    "a penalty for every member": (
        Reduced, "half_mu", property(lambda f: 0.5 * f.problem.mu), "value and derivatives/columns",
    ),
    "a gradient of one part": (
        Reduced, "_total", lambda _, gradient: gradient, "value and derivatives/columns of two levels",
    ),
    "a ridge for every member": (reductions, "scaled", lambda _, arrays: arrays, "value and derivatives/rows"),
    "an odd part left out": (
        reductions, "tree", lambda merge, parts: merge(*parts[:2]), "value and derivatives/rows without ridge",
    ),
    "the residual of one part": (
        Triangle, "merge", lambda own, backend, a, b: own.fold(backend, a, b.R, b.z),
        "value and derivatives/complex rows",
    ),
    "a triangle of the own columns": (
        column_chunks, "_across", lambda y, _, backend: column_chunks._fold(y, backend),
        "value and derivatives/compressed columns",
    ),
    "states of their own": (Prepared, "synchronised", lambda _, fun: fun, "first member"),
    "a theta0 of their own": (Group, "same", lambda _, obj: obj, "first member"),
    "clocks of their own": (Prepared, "agree", lambda _, x: x, "first member"),
}  # fmt: skip


def failed(case):
    return bool(conformance.run(conformance.targets(["numpy"], dtypes=["float64"]), f"distributed/{case}").failures)


@pytest.mark.parametrize("name", list(FAULTS))
def test_a_fault_in_what_members_exchange_is_caught(monkeypatch, name):
    """By a check that passes without it, as the suite asks."""
    owner, attribute, wrong, case = FAULTS[name]
    monkeypatch.setattr(owner, attribute, wrong)
    assert failed(case)


def test_a_column_is_dead_where_it_is_zero_in_the_rows_of_all():
    A = np.random.default_rng(3).normal(size=(24, 4))
    A[:2, 0], A[2:, 1] = 0.0, 0.0

    def dead(group):
        y = distributed.rows({"A": A}, np.arange(24.0), distributed.LOWER, group)
        problem = xv.separable(lambda theta, data: data["A"] * theta, y, lam=0.5)
        start = np.array([1.0, 0.5, 0.0, 2.0])
        return xv.solve(problem, start, over=xv.sets.Box(0.0, 10.0), max_iter=0, progress=False).verified

    with pytest.warns(xv.DeadUnitsWarning, match="1 of 4"):
        assert [(v.dead_units, v.units) for v in together(3, dead)] == [(1, 4)] * 3


def test_members_whose_targets_do_not_fit_together_are_told():
    def value(group):
        y = distributed.rows(np.arange(24.0), np.ones((24, 1 + group.rank)), distributed.LOWER, group)
        return xv.value_and_gradient(xv.separable(distributed.problems.decays, y), np.ones(3))

    with pytest.raises(GroupError, match="the same shapes and dtype"):
        together(3, value)


def test_members_get_the_same_of_their_own():
    def member(group):
        (total,) = group.total((np.array([1.0, group.rank]),))
        (first,) = group.first((np.array([group.rank]),))
        first += group.rank  # in memory of its own
        return (
            total.tolist(),
            first.tolist(),
            group.numbers([group.rank]).ravel().tolist(),
            group.texts(f"{group.rank}"),
        )

    assert together(3, member) == [([3.0, 3.0], [rank], [0.0, 1.0, 2.0], ["0", "1", "2"]) for rank in range(3)]


def test_members_that_do_not_call_alike_end():
    with pytest.raises(GroupError, match=r"must make the same calls; got .*\(3,\)"):
        together(2, lambda group: group.total((np.ones(2 + group.rank),)))
    with pytest.raises(GroupError, match=r"members \[1\] have not come to call 1"):
        together(2, lambda group: [group.agree(1.0) for _ in range(2 - group.rank)])
    with pytest.raises(KeyError, match="lost"):
        together(2, _lost)


def _lost(group):
    if group.rank == 1:
        raise KeyError("lost")
    group.agree(1.0)
