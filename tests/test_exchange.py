"""Arrays in from any framework, results out: the right numbers, never another dtype, never a crash."""

from __future__ import annotations

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import xvarpro as xv
from xvarpro.backends import exchange
from xvarpro.errors import ExchangeError

from .conftest import float64
from .support import HOST_BACKENDS, host, rng, send

SIX = np.arange(6.0)


def read_only():
    x = np.arange(6.0, dtype="float32")
    x.flags.writeable = False
    return x


# what comes in, and the numbers it stands for
INPUTS = {
    "numpy read-only": (read_only, SIX),
    "numpy negative strides": (lambda: np.arange(6.0, dtype="float32")[::-1], SIX[::-1]),
    "numpy strided": (lambda: np.arange(12.0, dtype="float32")[::2], 2 * SIX),
    "numpy fortran order": (lambda: np.asfortranarray(SIX.reshape(2, 3)), SIX.reshape(2, 3)),
    "numpy big endian": (lambda: np.arange(6, dtype=">f4"), SIX),
    "numpy 0-d": (lambda: np.array(1.5), np.array(1.5)),
    "numpy scalar": (lambda: np.float32(2.0), np.array(2.0)),
    "numpy float64": (lambda: SIX.copy(), SIX),
    "numpy bool": (lambda: SIX > 2, SIX > 2),
    "numpy int64": (lambda: SIX.astype(int), SIX),
    "numpy complex": (lambda: SIX * 1j, SIX * 1j),
    "numpy empty": (lambda: np.zeros((0, 3)), np.zeros((0, 3))),
    "numpy subclass": (lambda: np.ma.masked_array(SIX), SIX),
    "torch requires_grad": (lambda: torch.tensor(SIX, requires_grad=True), SIX),
    "torch conj": (lambda: torch.tensor(SIX * 1j).conj(), SIX * -1j),
    "torch neg": (lambda: torch.tensor(SIX * 1j).conj().imag, -SIX),
    "torch strided": (lambda: torch.arange(12.0)[::2], 2 * SIX),
    "torch transposed": (lambda: torch.tensor(SIX.reshape(2, 3)).T, SIX.reshape(2, 3).T),
    "torch expanded": (lambda: torch.tensor(SIX[None]).expand(2, 6), np.stack([SIX, SIX])),
    "torch float64": (lambda: torch.tensor(SIX), SIX),
    "torch parameter": (lambda: torch.nn.Parameter(torch.tensor(SIX)), SIX),
    "jax float32": (lambda: jnp.asarray(SIX, dtype="float32"), SIX),
    "jax int32": (lambda: jnp.arange(6), SIX),
    "strict": (lambda: send(xv.backends.get("array-api-strict"), SIX), SIX),
}


@pytest.mark.parametrize("name", INPUTS)
def test_the_numbers_arrive(name, backend):
    make, want = INPUTS[name]
    x = make()
    dtype = exchange.dtype_name(x)
    y = exchange.move(x, backend)
    assert xv.backends.of(y) is backend
    assert backend.dtype_name(y) == dtype
    assert tuple(y.shape) == want.shape
    assert (host(y) == want).all()


@pytest.mark.parametrize("name", INPUTS)
def test_the_source_is_left_alone(name, backend):
    make, want = INPUTS[name]
    x = make()
    before = getattr(x, "requires_grad", None)
    exchange.move(x, backend)
    assert (host(x) == want).all()
    assert getattr(x, "requires_grad", None) == before


@pytest.mark.parametrize("home", HOST_BACKENDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_there_and_back_again(home, dtype, backend):
    owner = xv.backends.get(home)
    with float64(owner):
        x = send(owner, rng(0).normal(size=(3, 4)), dtype)
        back = exchange.move(exchange.move(x, backend), owner)
    assert owner.dtype_name(back) == dtype
    assert (host(back) == host(x)).all()


@pytest.mark.parametrize("home", HOST_BACKENDS)
def test_dtype_on_request(home, backend):
    owner = xv.backends.get(home)
    with float64(owner):
        y = exchange.move(send(owner, SIX), backend, dtype="float32")
    assert backend.dtype_name(y) == "float32"


BFLOATS = {
    "torch": lambda: torch.arange(6.0, dtype=torch.bfloat16),
    "jax": lambda: jnp.arange(6.0, dtype=jnp.bfloat16),
    "numpy": lambda: SIX.astype(ml_dtypes.bfloat16),
}


@pytest.mark.parametrize("home", BFLOATS)
@pytest.mark.parametrize("target", ["numpy", "torch", "jax"])
def test_bfloat16_arrives_or_says_why_not(home, target):
    """Storage for some frameworks, unknown to others: as it is, or cast on request, or an error with a remedy."""
    x, to = BFLOATS[home](), xv.backends.get(target)
    assert host_float(exchange.move(x, to, dtype="float32")) == SIX.tolist()
    try:
        y = exchange.move(x, to)
    except ExchangeError as error:
        message = str(error)
    else:
        assert to.dtype_name(y) == "bfloat16"
        return
    assert "bfloat16" in message
    assert "float32" in message


def host_float(x):
    return host(x).astype(float).tolist()


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64:UserWarning")  # JAX says so as well
def test_float64_does_not_become_float32_on_jax():
    with pytest.raises(ExchangeError, match=r"float64 array became float32 on jax.*jax_enable_x64"):
        exchange.move(SIX, xv.backends.get("jax"))


@pytest.mark.parametrize("thing", [[1.0], "text", object(), None, {1: 2}])
def test_what_is_no_array_is_an_error(thing, backend):
    with pytest.raises(ExchangeError, match=r"expected an array"):
        exchange.move(thing, backend)


@pytest.mark.parametrize("dtype", ["datetime64[s]", "U3", "O"])
@pytest.mark.parametrize("target", ["torch", "jax", "array-api-strict"])
def test_dtypes_that_a_framework_has_not_are_an_error(dtype, target):
    with pytest.raises(ExchangeError, match=r"cannot move a numpy array of dtype"):
        exchange.move(np.zeros(3, dtype), xv.backends.get(target))


def test_longdouble_is_an_error_or_kept(backend):
    x = np.arange(3, dtype=np.longdouble)
    try:
        y = exchange.move(x, backend)
    except ExchangeError as error:
        text = str(error)
    else:
        assert host(y).dtype == np.longdouble
        return
    assert "float64" in text


@pytest.mark.parametrize("target", HOST_BACKENDS)
def test_read_only_memory_is_never_written_through_an_alias(target):
    """Torch would make a writable alias of read-only memory."""
    x = read_only()
    y = exchange.move(x, xv.backends.get(target))
    if target == "torch":
        y[0] = 99.0
    assert x[0] == 0.0


def test_jax_copies_what_the_caller_may_write_to():
    for offset in range(8):
        x = np.zeros(64 + offset, "float32")[offset:]
        y = exchange.move(x, xv.backends.get("jax"))
        x[:] = 7.0
        assert not host(y).any()


@pytest.mark.parametrize("name", [n for n in HOST_BACKENDS if n != "jax"])
def test_host_arrays_are_not_copied_without_need(name):
    backend = xv.backends.get(name)
    x = np.zeros(1000)
    assert np.shares_memory(backend.to_numpy(exchange.move(x, backend)), x)


class Foreign:
    """An array of a framework that nobody here knows, with DLPack."""

    def __init__(self, x):
        self.x = x
        self.dtype = x.dtype
        self.shape = x.shape

    def __dlpack__(self, **keywords):
        return self.x.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


class Duck(Foreign):
    """One with ``__array__`` as well."""

    def __array__(self, dtype=None, copy=None):
        return np.array(self.x, dtype=dtype)


@pytest.mark.parametrize("kind", [Foreign, Duck])
def test_unknown_frameworks_come_in_through_dlpack(kind, backend):
    y = exchange.move(kind(SIX), backend)
    assert xv.backends.of(y) is backend
    assert (host(y) == SIX).all()
