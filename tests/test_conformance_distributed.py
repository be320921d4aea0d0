"""Data in parts: faults planted in what members exchange are caught, and no member waits for another in vain."""

from __future__ import annotations

import numpy as np
import pytest

from xvarpro import conformance
from xvarpro.backends.group import Group
from xvarpro.driver.prepare import Prepared
from xvarpro.errors import GroupError
from xvarpro.lower.accumulation import Triangle
from xvarpro.objective import reductions
from xvarpro.objective.columns import Columns
from xvarpro.objective.reduced import Reduced
from xvarpro.problem import column_chunks
from xvarpro_conformance.checks import distributed
from xvarpro_conformance.members import together
from xvarpro_conformance.references import dense
from xvarpro_conformance.references.twins import marquardt

FAULTS = {
    "a penalty for every member": (Columns, "half_mu", Reduced.half_mu, "value and gradient/columns"),
    "a gradient of one part": (Columns, "gradient", Reduced.gradient, "gauss newton model/columns of two levels"),
    "a ridge for every member": (reductions, "scaled", lambda _, arrays: arrays, "value and gradient/rows"),
    "an odd part left out": (
        reductions, "tree", lambda merge, parts: merge(*parts[:2]), "value and gradient/rows without ridge",
    ),
    "the residual of one part": (
        Triangle, "merge", lambda own, backend, a, b: own.fold(backend, a, b.R, b.z), "value and gradient/complex rows",
    ),
    "a triangle of the own columns": (
        column_chunks, "_across", lambda y, _, backend: column_chunks._fold(y, backend),
        "value and gradient/compressed columns",
    ),
    "states of their own": (Prepared, "synchronised", lambda _, fun: fun, "processors that round otherwise/model"),
    "a theta0 of their own": (Group, "same", lambda _, obj: obj, "first member"),
    "clocks of their own": (Prepared, "agree", lambda _, x: x, "step decisions/Levenberg-Marquardt, rows"),
    "shapes that differ": (Group, "check_same", lambda *_: None, "failure of a member/shapes"),
}  # fmt: skip


def failed(case):
    return bool(conformance.run(conformance.targets(["numpy"], dtypes=["float64"]), f"distributed/{case}").failures)


@pytest.mark.parametrize("name", list(FAULTS))
def test_a_fault_in_what_members_exchange_is_caught(monkeypatch, name):
    """By a check that passes without it, as the suite asks."""
    owner, attribute, wrong, case = FAULTS[name]
    monkeypatch.setattr(owner, attribute, wrong)
    assert failed(case)


def test_no_decision_on_the_mixtures_is_made_by_rounding():
    made = dense.of(distributed.mixtures)
    pair = distributed.steps()["Levenberg-Marquardt, rows"].pair
    assert pair.twin is marquardt
    found = marquardt(made.f, made.theta0, pair.iterations)
    assert found.margin > 1e-6
    assert {"accepted Gauss-Newton", "refused Gauss-Newton", "accepted BFGS"} <= found.events


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
