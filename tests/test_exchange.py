"""Arrays in from any framework, results out: the right numbers, never another dtype, never a crash."""

from array import array
from types import SimpleNamespace

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import xvarpro as xv
from xvarpro.backends import checksums, exchange
from xvarpro.core.namespace import dtype_name
from xvarpro.errors import ExchangeError, ProblemError
from xvarpro_conformance.frameworks import hooks

from .support import HOST_BACKENDS, host, no_cuda, rng

SIX = np.arange(6.0)


BFLOATS = {
    "torch": lambda: torch.arange(6.0, dtype=torch.bfloat16),
    "jax": lambda: jnp.arange(6.0, dtype=jnp.bfloat16),
    "numpy": lambda: SIX.astype(ml_dtypes.bfloat16),
}


@pytest.mark.parametrize("owner", BFLOATS)
@pytest.mark.parametrize("target", ["numpy", "torch", "jax"])
def test_bfloat16_arrives_or_says_why_not(owner, target):
    """Storage for some frameworks, unknown to others: as it is, or cast on request, or an error with a remedy."""
    x, to = BFLOATS[owner](), xv.backends.get(target)
    assert host_float(exchange.move(x, to, dtype="float32")) == SIX.tolist()
    try:
        y = exchange.move(x, to)
    except ExchangeError as error:
        message = str(error)
    else:
        assert dtype_name(y) == "bfloat16"
        return
    assert "bfloat16" in message
    assert "float32" in message


def host_float(x):
    return host(x).astype(float).tolist()


def test_float64_does_not_become_float32_on_jax():
    with pytest.raises(ExchangeError, match=r"became float32 on jax.*jax_enable_x64 on, or cast the NumPy array"):
        exchange.move(SIX, xv.backends.get("jax"))


def test_a_dtype_that_the_callers_framework_cannot_hold_is_refused_before_the_solve():
    jax = pytest.importorskip("jax")
    called = []
    problem = xv.separable(lambda theta, t: called.append(1) or t[:, None] ** theta, SIX, data=SIX)
    with pytest.raises(ExchangeError, match=r"must be one that theta0's framework can hold.*jax_enable_x64 is off"):
        xv.solve(problem, jax.numpy.ones(1), dtype="float64", backend="numpy")
    assert not called


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
    x = np.arange(6.0, dtype="float32")
    x.flags.writeable = False
    y = exchange.move(x, xv.backends.get(target))
    if target == "torch":
        y[0] = 99.0
    assert x[0] == 0.0


@pytest.mark.parametrize("what", hooks(xv.backends.get("torch")).array_fixtures())
def test_accelerators_exchange_arrays_of_any_layout(what, monkeypatch):
    """JAX refuses gaps and broadcasts, and no DLPack takes what is in a graph: the owner hands over something else."""
    monkeypatch.setattr(exchange, "is_host", lambda device: False)  # as on a device, through DLPack
    x, values = hooks(xv.backends.get("torch")).array_fixtures()[what]()
    jax = xv.backends.get("jax")
    with jax.scope("float64"):
        y = exchange.move(x, jax)
        assert y.shape == values.shape
        assert np.array_equal(np.asarray(y.astype(values.dtype)), values)


def test_jax_copies_what_the_caller_may_write_to():
    for offset in range(8):
        x = np.zeros(64 + offset, "float32")[offset:]
        y = exchange.move(x, xv.backends.get("jax"))
        x[:] = 7.0
        assert not host(y).any()


LAYOUTS = {
    "rows": lambda x: x,
    "columns": lambda x: xv.array_namespace(x).matrix_transpose(x),
    "every other": lambda x: x[:, ::2],
    "one": lambda x: x[:, 0],
}


def variants(dtype):
    """An array, the same with one entry of another sign or value, and with two that have changed places."""
    x = np.arange(1, 71).reshape(7, 10).astype(dtype)
    found = [x]
    for at in ((0, 0), (3, 0), (6, 8)):
        for value in (-x[at], 99, 0):
            found.append(x.copy())
            found[-1][at] = value
    for one, other in [((0, 0), (6, 0)), ((1, 0), (2, 0)), ((1, 4), (2, 6))]:
        found.append(x.copy())
        found[-1][one], found[-1][other] = x[other], x[one]
    return found


@pytest.mark.parametrize("name", [*HOST_BACKENDS[:3], pytest.param("cupy", marks=pytest.mark.cuda)])
def test_arrays_that_differ_have_other_checksums(name, subtests):
    if name == "cupy" and (reason := no_cuda(name)):
        pytest.skip(reason)
    backend = xv.backends.get(name)
    for dtype in ("float32", "float64", "complex64", "complex128", "int16"):
        for layout, of in LAYOUTS.items():
            with subtests.test(f"{dtype}, {layout}"):
                found = [of(backend.asarray(x)) for x in variants(dtype)]
                differ = len({host(x).tobytes() for x in found})
                assert len({int(backend.checksum(x)) for x in found}) == differ > 6
                assert int(backend.checksum(found[0])) == int(backend.checksum(of(backend.asarray(variants(dtype)[0]))))


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_what_a_device_adds_up_tells_arrays_apart(name, dtype, monkeypatch):
    """All signs at once as well, which are the last bits of products."""
    monkeypatch.setattr(checksums, "AT_ONCE", 32)
    x = rng(0).normal(size=96).astype(dtype)
    x = x + 1j * x[::-1] if x.dtype.kind == "c" else x
    found = [
        x,
        -x,
        abs(x.real) + 1j * x.imag if x.dtype.kind == "c" else abs(x),
        x[::-1],
        np.zeros(96),
        -np.zeros(96),
        *(np.where(np.arange(96) == i, 0, x) for i in (0, 40, 95)),
    ]
    bits = [y.astype(x.dtype).view(f"i{checksums.width(x.dtype.itemsize, x.dtype.kind == 'c')}") for y in found]
    backend = xv.backends.get(name)
    sums = [int(checksums.of_integers(backend.asarray(y))) for y in (*bits, ~bits[0])]
    assert len(set(sums)) == len(sums)
    assert sums[0] == int(checksums.of_integers(backend.asarray(bits[0].copy())))


def thing(of=SIX, **members):
    """What says that it is read as an array."""
    return type("Thing", (), {"__array__": lambda x, dtype=None, copy=None: of, **members})()


def unreadable(x, dtype=None, copy=None):
    raise LookupError("no entries")


def test_numbers_in_another_form_are_an_array_of_them(subtests):
    for what, x in {
        "a column": thing(dtype=SIX.dtype),
        "numbers without a unit": thing(dtype=SIX.dtype, unit=None, units=None),
        "a buffer": memoryview(SIX.copy()),
        "an array of Python's": array("d", SIX),
        "a masked array without a mask": np.ma.masked_array(SIX.copy()),
    }.items():
        with subtests.test(what):
            found = exchange.as_array(x, "x")
            assert type(found) is np.ndarray
            assert found.tolist() == SIX.tolist()
    for x in (thing(np.array(["a"]), dtype=np.dtype("U1")), "words", 1.5, None, np.array(["a"])):
        assert exchange.as_array(x, "x") is x
    for x in ([1.0, 2.0], ((1, 2), (3, 4))):
        assert np.array_equal(exchange.numbers(x, "x"), np.asarray(x))
    assert exchange.numbers(thing(dtype=SIX.dtype), "x").tolist() == SIX.tolist()


def test_what_says_more_than_an_array_can_is_refused_by_its_name(subtests):
    for what, x, words in (
        ("a table", thing(), "which is a table. Pass its columns"),
        ("unreadable", thing(dtype=SIX.dtype, __array__=unreadable), "cannot be read as one: no entries"),
        ("sparse", thing(toarray=None), r"which is sparse. Pass x.toarray\(\)"),
        ("of another kind", thing(todense=None), r"which is sparse. Pass x.toarray\(\)"),
        ("of a unit", thing(dtype=SIX.dtype, unit="m"), "which has units"),
        ("of units", thing(dtype=SIX.dtype, units="m"), "which has units"),
        ("masked", np.ma.masked_array(SIX, mask=SIX > 1.0), "whose mask would be lost"),
        ("hidden", thing(dtype=SIX.dtype, get_mask=None), "whose mask would be lost"),
        ("words", ["a"], "must hold numbers"),
        ("uneven rows", [[1.0], [1.0, 2.0]], "must hold numbers, or lists of them of one length"),
    ):
        with subtests.test(what), pytest.raises(ProblemError, match=f"^the data .*{words}"):
            exchange.numbers(x, "the data")


@pytest.mark.parametrize("name", HOST_BACKENDS)
def test_arrays_of_frameworks_that_are_not_known_arrive(name):
    backend, how = xv.backends.get(name), ("__dlpack__", "__dlpack_device__")
    exported = thing(dtype=SIX.dtype, shape=SIX.shape, **{x: getattr(SIX, x) for x in how})
    with backend.scope("float64"):
        for x in (exported, thing(dtype=SIX.dtype)):
            assert host_float(exchange.move(x, backend, dtype="float64")) == SIX.tolist()
        with pytest.raises(ExchangeError, match="a known framework or with __dlpack__"):
            exchange.move(SimpleNamespace(dtype=SIX.dtype), backend)


def test_a_device_is_found_by_its_name_or_is_one():
    several = SimpleNamespace(name="several", devices=lambda: {"cpu": 1.0, "cuda:0": 2.0, "cuda:1": 3.0})
    names = SimpleNamespace(name="names", devices=lambda: {"cpu": "cpu"})
    for device, place in (("cpu", 1.0), ("cuda", 2.0), ("gpu", 2.0), ("cuda:1", 3.0), ("gpu:1", 3.0), (2.5, 2.5)):
        assert exchange.find_device(several, device) == place
    for there, device in ((several, "cuda:2"), (several, "nowhere"), (names, 2.5), (names, "nowhere:3")):
        with pytest.raises(ValueError, match=r"^device must be one of 'cpu'"):
            exchange.find_device(there, device)
    for backend in map(xv.backends.get, HOST_BACKENDS):
        for name, place in backend.devices().items():
            assert str(exchange.find_device(backend, name)) == str(exchange.find_device(backend, place)) == str(place)
