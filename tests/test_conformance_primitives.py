"""The suite finds faults: each is planted alone, and what fails names the part that it was planted in."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import count

import array_api_compat.numpy as numpy_api
import numpy as np
import pytest

from xvarpro import conformance
from xvarpro.backends import exchange
from xvarpro.backends.numpy import NumPyBackend
from xvarpro.backends.tape.engine import Tape
from xvarpro.backends.tape.recording import unary_method
from xvarpro.conformance import Target
from xvarpro.conformance.checks.exchange import exported

AREAS = ("exchange", "arithmetic", "derivatives", "control flow", "factorisations", "numerics scope")


def failed(backend, *only):
    """Addresses of what failed, and what was off there."""
    report = conformance.run([Target(backend, "cpu", "float64")], only)
    assert len(report.outcomes) > len(report.failures), "something must pass"
    return {o.address: "; ".join(m.what for m in o.failures) or o.note for o in report.failures}


@pytest.mark.parametrize("area", AREAS)
def test_nothing_fails_where_nothing_is_planted(area):
    assert not failed(NumPyBackend(), area)


# -- derivatives -------------------------------------------------------------------------------------------------------


def test_a_wrong_sign_in_one_rule(monkeypatch):
    monkeypatch.setattr(Tape, "tanh", unary_method("tanh", lambda xp, g, y, _x: -g * (1 - y * y)))
    found = failed(NumPyBackend(), "derivatives")
    assert set(found) == {"derivatives/functions/tanh", "derivatives/complex functions/tanh"}
    assert "gradient, the limit of differences" in found["derivatives/functions/tanh"]


class Untransposed(NumPyBackend):
    """A push-forward that is not what the pull-back transposes."""

    def linearise(self, fun, primals, constants=()):
        outputs, push = super().linearise(fun, primals, constants)
        return outputs, lambda v: tuple(2 * x for x in push(v))


def test_a_push_forward_that_is_no_transpose():
    found = failed(Untransposed(), "derivatives/functions/exp", "derivatives/functions/sum", "arithmetic/reductions")
    assert set(found) == {"derivatives/functions/exp", "derivatives/functions/sum"}
    assert all("<u, J v>" in what for what in found.values())


# -- factorisations ----------------------------------------------------------------------------------------------------


class Single(NumPyBackend):
    """A factorisation and a solver that return float32."""

    def cholesky(self, A):
        return super().cholesky(A).astype("complex64" if np.iscomplexobj(A) else "float32")

    def solve_triangular(self, R, B, *, lower=False, transpose=False):
        X = super().solve_triangular(R, B, lower=lower, transpose=transpose)
        return X.astype("complex64" if np.iscomplexobj(B) else "float32")


class Narrow(NumPyBackend):
    """A singular value decomposition whose singular values are float32, and exact."""

    def svd(self, A):
        U, s, Vh = super().svd(A)
        return U, s.astype("float32"), Vh


class Off(NumPyBackend):
    """A factorisation that differs by 1e-6."""

    def qr(self, A, mode="reduced"):
        Q, R = super().qr(A, mode)
        return Q * (1 + 1e-6), R


class Bent(NumPyBackend):
    """One whose factors are off, and whose product is not."""

    def qr(self, A, mode="reduced"):
        Q, R = super().qr(A, mode)
        return Q * (1 + 1e-6), R / (1 if mode == "r" else 1 + 1e-6)


class Raises(NumPyBackend):
    """One that raises where NaN is required."""

    def cholesky(self, A):
        return np.linalg.cholesky(A)


@pytest.mark.parametrize(
    ("backend", "checks", "what"),
    [
        (Single(), {"cholesky", "triangular solves", "qr"}, "dtype"),
        (Narrow(), {"svd"}, "dtypes"),
        (Off(), {"qr"}, "Q R"),
        (Bent(), {"qr"}, "Q^H Q"),
        (Raises(), {"failures"}, "LinAlgError"),
    ],
    ids=["float32", "float32 in part", "off by 1e-6", "not orthonormal", "raises"],
)
def test_a_factorisation_that_breaks_its_promise(backend, checks, what):
    found = failed(backend, "factorisations")
    assert {address.split("/")[1] for address in found} == checks
    assert all(what in said for address, said in found.items() if "very tall" not in address)


# -- exchange ----------------------------------------------------------------------------------------------------------


class Casts(NumPyBackend):
    """An adapter that turns float64 into float32."""

    def asarray(self, x, *, dtype=None, device=None):
        return super().asarray(x, dtype="float32" if dtype == "float64" else dtype)


class Rounds(NumPyBackend):
    """One that does and turns it back: the dtype is right, and half of the digits are gone."""

    def asarray(self, x, *, dtype=None, device=None):
        x = super().asarray(x, dtype=dtype)
        return x.astype("float32").astype("float64") if x.dtype == "float64" else x


class Writes(NumPyBackend):
    """One that changes what it was given."""

    def asarray(self, x, *, dtype=None, device=None):
        if isinstance(x, np.ndarray) and x.flags.writeable and x.ndim == 2 and x.size and x.dtype == "float64":
            x[0, 0] = 7.0
        return super().asarray(x, dtype=dtype)


@pytest.mark.parametrize(
    ("backend", "what"),
    [
        (Casts(), "float64 array became float32 on numpy, which would lose digits"),
        (Rounds(), "values"),
        (Writes(), "the source afterwards"),
    ],
    ids=["casts", "rounds", "writes"],
)
def test_an_adapter_that_changes_numbers(backend, what):
    found = failed(backend, "exchange/arrays")
    assert what in found["exchange/arrays/numpy, plain"]
    assert what in found["exchange/arrays/torch, requires_grad"]
    assert not any("int64" in address or "bool" in address for address in found)


def test_memory_that_is_shared_and_said_to_be_copied(monkeypatch):
    moved = count()
    monkeypatch.setattr(exchange, "address", lambda x: next(moved))
    found = failed(NumPyBackend(), "exchange/copies", "exchange/mixtures")
    assert set(found) == {"exchange/copies"}
    assert "shared or copied" in found["exchange/copies"]


def test_arrays_of_a_graph_are_not_exported():
    import torch

    x = torch.ones(2, requires_grad=True)
    assert not exported(2 * x)
    assert exported(x.detach())


# -- arithmetic, control flow, scope -----------------------------------------------------------------------------------


def test_a_function_that_loses_digits(monkeypatch):
    monkeypatch.setattr(numpy_api, "expm1", lambda x: np.exp(x) - 1)
    assert set(failed(NumPyBackend(), "arithmetic")) == {"arithmetic/elementwise functions/expm1"}


class OneTooMany(NumPyBackend):
    """A loop that takes a step before it looks."""

    def while_loop(self, cond, body, state):
        return super().while_loop(cond, body, body(state))


class Both(NumPyBackend):
    """A branch that is always taken."""

    def when(self, condition, fun, state):
        return fun(state)


@pytest.mark.parametrize(
    ("backend", "checks"),
    [(OneTooMany(), {"while loops"}), (Both(), {"branches", "loops in loops"})],
    ids=["one too many", "always"],
)
def test_control_flow_that_is_wrong(backend, checks):
    found = failed(backend, "control flow")
    assert {address.split("/")[1] for address in found} == checks


class Leaks(NumPyBackend):
    """A scope that leaves a setting behind."""

    @contextmanager
    def scope(self, dtype):
        np.seterr(over="raise")
        yield


class Draws(NumPyBackend):
    """A scope that draws from the caller's generator."""

    @contextmanager
    def scope(self, dtype):
        np.random.random()  # noqa: NPY002 - the very thing
        with super().scope(dtype):
            yield


@pytest.mark.parametrize(("kind", "what"), [(Leaks, "errstate of numpy"), (Draws, "random of numpy")])
def test_a_scope_that_leaks(kind, what):
    with np.errstate():
        found = failed(kind(), "numerics scope/settings", "numerics scope/graphs of the caller")
    assert "numerics scope/settings/scopes in scopes" in found
    assert all(what in said for said in found.values())
