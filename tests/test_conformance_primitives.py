"""The suite finds faults: each is planted alone, and what fails names the part that it was planted in."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from xvarpro import conformance
from xvarpro.backends.numpy import NumPyBackend
from xvarpro.backends.tape.engine import Tape
from xvarpro.backends.tape.recording import unary_method
from xvarpro_conformance import Target


def failed(backend, *only):
    """Addresses of what failed, and what was off there."""
    report = conformance.run([Target(backend, "cpu", "float64")], only)
    assert len(report) > len(report.failures), "something must pass"
    return {o.address: "; ".join(m.what for m in o.failures) or o.note for o in report.failures}


def test_a_wrong_sign_in_one_rule(monkeypatch):
    monkeypatch.setattr(Tape, "tanh", unary_method("tanh", lambda xp, g, y, _x: -g * (1 - y * y)))
    found = failed(NumPyBackend(), "derivatives/functions")
    assert set(found) == {"derivatives/functions/elementwise"}
    assert "gradient along a direction" in found["derivatives/functions/elementwise"]


class Place(str):
    """A device as CuPy's are: without a hash."""

    __hash__ = None


class Far(NumPyBackend):
    """One device, which is not called cpu."""

    def __init__(self, place):
        self.place = place

    def devices(self):
        return {"far:0": self.place}


@pytest.mark.parametrize(
    ("place", "only"), [(Place("cpu"), "derivatives/functions/elementwise"), (1j, "exchange/devices by name")]
)
def test_devices_need_no_hash_and_no_processor_among_them(place, only):
    report = conformance.run([Target(Far(place), "far:0", "float64")], [only])
    assert report
    assert not report.failures


class Untransposed(NumPyBackend):
    """A push-forward that is not what the pull-back transposes."""

    def linearise(self, fun, primals, constants=()):
        outputs, push = super().linearise(fun, primals, constants)
        return outputs, lambda v: tuple(2 * x for x in push(v))


def test_a_push_forward_that_is_no_transpose():
    found = failed(Untransposed(), "derivatives/functions/elementwise", "exchange/numbers on the host")
    assert set(found) == {"derivatives/functions/elementwise"}
    assert all("push-forward" in what for what in found.values())


class Single(NumPyBackend):
    """A factorisation and a solver that return float32."""

    def cholesky(self, A):
        return super().cholesky(A).astype("complex64" if np.iscomplexobj(A) else "float32")

    def solve_triangular(self, R, B, *, lower=False, transpose=False):
        X = super().solve_triangular(R, B, lower=lower, transpose=transpose)
        return X.astype("complex64" if np.iscomplexobj(B) else "float32")


class Off(NumPyBackend):
    """A factorisation that differs by 1e-6."""

    def qr(self, A, mode="reduced"):
        Q, R = super().qr(A, mode)
        return Q * (1 + 1e-6), R


class Raises(NumPyBackend):
    """One that raises where NaN is required."""

    def cholesky(self, A):
        return np.linalg.cholesky(A)


@pytest.mark.parametrize(
    ("backend", "checks", "what"),
    [
        (Single(), {"cholesky", "triangular solves", "qr"}, "dtype"),
        (Off(), {"qr"}, "Q R"),
        (Raises(), {"failures", "qr"}, "LinAlgError"),
    ],
    ids=["float32", "off by 1e-6", "raises"],
)
def test_a_factorisation_that_breaks_its_promise(backend, checks, what):
    found = failed(backend, "factorisations")
    assert {address.split("/")[1] for address in found} == checks
    assert all(what in said for address, said in found.items() if "very tall" not in address)


class Rounds(NumPyBackend):
    """One that does and turns it back: the dtype is right, and half of the digits are gone."""

    def asarray(self, x, *, dtype=None, device=None):
        x = super().asarray(x, dtype=dtype)
        return x.astype("float32").astype("float64") if x.dtype == "float64" else x


class OneTooMany(NumPyBackend):
    """A loop that takes a step before it looks."""

    def while_loop(self, cond, body, state):
        return super().while_loop(cond, body, body(state))


class Leaks(NumPyBackend):
    """A scope that leaves a setting behind."""

    @contextmanager
    def scope(self, dtype):
        np.seterr(over="raise")
        yield


def test_an_adapter_that_changes_numbers():
    found = failed(Rounds(), "exchange/arrays")
    assert "values" in found["exchange/arrays/numpy, plain"]
    assert not any("int64" in address or "bool" in address for address in found)


def test_control_flow_that_is_wrong():
    found = failed(OneTooMany(), "control flow")
    assert {address.split("/")[1] for address in found} == {"while loops"}


def test_a_scope_that_leaks():
    with np.errstate():
        found = failed(Leaks(), "numerics scope/settings")
    assert "errstate of numpy" in found["numerics scope/settings/scopes in scopes"]
