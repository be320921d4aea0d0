"""The registry, and what every backend adds to its array-API namespace."""

import re
import subprocess
import sys

import numpy as np
import pytest

from xvarpro import backends
from xvarpro.backends import Backend
from xvarpro.backends.adapters import find_dtype
from xvarpro.backends.eager import cholesky_qr
from xvarpro.backends.exchange import find_device
from xvarpro.core.namespace import dtype_name
from xvarpro.errors import UnknownBackendError

from .support import HOST_BACKENDS, error, host, in_turn, no_cuda, rng, send

EPS = np.finfo(np.float64).eps


# -- the registry ------------------------------------------------------------------------------------------------------


def test_names_of_the_built_in_backends():
    assert set(HOST_BACKENDS) | {"cupy"} <= set(backends.known())


def test_the_seam_stays_small():
    """What an author of a backend sees: methods, properties and class attributes, counted together."""
    members = {name for name in (*vars(Backend), *Backend.__annotations__) if not name.startswith("_")}
    assert len(members) <= 31, sorted(members)


def test_one_backend_per_name(backend):
    assert isinstance(backend, Backend)
    assert backends.get(backend.name) is backend


@pytest.mark.parametrize("name", ["tensorflow", "", "Numpy"])
def test_unknown_names_list_the_known(name):
    with pytest.raises(UnknownBackendError) as caught:
        backends.get(name)
    assert repr(name) in str(caught.value)
    assert all(known in str(caught.value) for known in backends.known())


EXTRAS = {  # what needs one: the package, and the extra
    "xv.backends.get('torch')": ("torch", "torch"),
    "xv.backends.get('jax')": ("jax", "jax"),
    "xv.backends.get('cupy')": ("cupy", "cuda12"),
    "xv.layers.torch": ("torch", "torch"),
    "xv.layers.jax": ("jax", "jax"),
    "xv.distributed.TorchGroup": ("torch", "torch"),
    "xv.distributed.dask_rows": ("dask", "dask"),
    "import xvarpro.sklearn": ("sklearn", "sklearn"),
    "import xvarpro.results.figures": ("matplotlib", "plot"),
    "from xvarpro.statistics import intervals; intervals.quantile(0.5)": ("scipy", "scipy"),
}

WITHOUT = f"""
import sys
sys.modules |= dict.fromkeys({[package for package, _ in EXTRAS.values()]})
import xvarpro as xv
for line in {list(EXTRAS)}:
    try:
        exec(line)
    except xv.errors.BackendNotInstalledError as error:
        print(error)
"""


def test_what_is_missing_names_the_extra():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    for (package, extra), line in zip(EXTRAS.values(), done.stdout.splitlines(), strict=True):
        said = rf".+ needs the package '{package}'.*: pip install 'xvarpro\[{extra}\].* clone pip install '\.\[{extra}"
        assert re.match(said, line), line


def test_arrays_are_known_by_their_type(backend):
    assert backends.of(send(backend, np.ones(2))) is backend


@pytest.mark.parametrize("thing", [1.0, [1.0], "x", None, object(), np])
def test_what_is_no_array_has_no_backend(thing):
    assert backends.of(thing) is None


def test_numpy_scalars_belong_to_numpy():
    assert backends.of(np.float64(1.0)).name == "numpy"


def test_subclasses_of_arrays_belong_to_their_framework():
    import torch

    class Marked(np.ndarray):
        pass

    assert backends.of(np.ones(2).view(Marked)).name == "numpy"
    assert backends.of(torch.nn.Parameter(torch.ones(2))).name == "torch"


def test_the_nearest_class_decides():
    """A framework may build its arrays on another's: not the order of a set, which changes from run to run."""
    kind = type("Tensor", (np.ndarray,), {"__module__": "torch.somewhere"})
    other = type("Other", (np.ndarray,), {"__module__": "jax.elsewhere"})
    for _ in range(2):
        assert backends.of(np.ones(2).view(kind)).name == "torch"
        assert backends.of(np.ones((2, 2)).view(other)).name == "jax"


def test_tracers_belong_to_jax():
    import jax

    seen = []
    jax.jit(lambda x: seen.append(backends.of(x)) or x)(np.ones(2, "float32"))
    assert seen == [backends.get("jax")]


# -- arrays ------------------------------------------------------------------------------------------------------------


def test_dtypes_by_name(backend):
    x = backend.asarray(np.ones(2), dtype="float32")
    assert dtype_name(x) == "float32"
    assert x.dtype == find_dtype(backend.xp, "float32")


def test_description_is_plain(backend):
    found = backend.describe()
    assert backend.name in found
    assert all(isinstance(x, str | int | bool) for x in found.values())


# -- linear algebra ----------------------------------------------------------------------------------------------------


@in_turn("condition", [1.0, 1e3, 1e6, 1e7, 1e9, 1e15, np.inf])
@in_turn("scale", [1.0, 1e-160, 1e160])
def test_qr_of_a_tall_matrix(condition, scale, backend):
    """Householder's accuracy, whichever way it was computed and whatever the columns are like."""
    m, n = 600, 30
    U, V = (np.linalg.qr(rng(i).normal(size=(size, n)))[0] for i, size in enumerate((m, n)))
    A = scale * (U * np.logspace(0, -np.log10(condition), n)) @ V.T if condition < np.inf else scale * np.eye(m, n)
    A[:, 5] *= condition < np.inf
    with backend.scope("float64"):
        found = [backend.qr(send(backend, A)), cholesky_qr(backend, send(backend, A))]  # the second on devices
    for Q, R in (map(host, factors) for factors in found if factors):
        assert np.abs(Q.T @ Q - np.eye(n)).max() <= 50 * EPS
        assert np.abs(Q @ R - A).max() <= 20 * EPS * np.abs(A).max() * np.sqrt(n)
        assert np.abs(np.tril(R, -1)).max() == 0


def test_svd_of_a_square_matrix_with_an_infinite_entry_returns(backend):
    A = rng([2, 2]).normal(size=(3, 2, 2))
    A[1, 0, 0] = np.inf  # LAPACK never comes back from some of these
    with backend.scope("float64"):
        U, s, Vh = (host(x) for x in backend.svd(send(backend, A)))
    assert [bool(np.isfinite(x).all()) for x in s] == [True, False, True]
    assert (U.shape, Vh.shape) == ((3, 2, 2), (3, 2, 2))


def test_indices_among_the_outputs_have_no_gradient(backend):
    x, i = send(backend, np.array([1.0, 2.0])), send(backend, np.array([0, 1]))
    with backend.scope("float64"):
        _, pull = backend.vjp(lambda x, i: (x * x, i), (x,), (i,))
        assert host(pull((x, i))[0]).tolist() == [2.0, 8.0]


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_primitives_on_a_cuda_device(name):
    if reason := no_cuda(name):
        pytest.skip(reason)
    backend = backends.get(name)
    A = rng(0).normal(size=(7, 3))
    device = find_device(backend, "cuda:0")
    there = backend.asarray(A, device=device)
    with backend.scope("float64"):
        Q, R = backend.qr(there)
        L = backend.cholesky(there.mT @ there)
        bad = backend.cholesky(backend.asarray(np.diag([1.0, -1.0]), device=device))
        x = backend.solve_triangular(R, R @ backend.asarray(np.ones((3, 2)), device=device))
        outputs, pullback = backend.vjp(lambda A: (A @ A.mT,), (there,))
        (g,) = pullback(outputs)
    assert error(host(Q) @ host(R), A) <= 1e-14
    assert error(host(L) @ host(L).T, A.T @ A) <= 1e-14
    assert np.isnan(host(bad)).any()
    assert error(x, np.ones((3, 2))) <= 1e-13
    assert error(g, 2 * (A @ A.T) @ A) <= 1e-13


@pytest.mark.parametrize("n", [7, 40])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("lower", [False, True])
def test_many_right_hand_sides_are_solved_as_well_as_one(backend, lower, transpose, n):
    """Powers of a variable, in units far apart; NaN in the other triangle. The residual is that of a substitution."""
    R = np.linalg.qr(np.vander(np.linspace(0.1, 1.0, 80), n) * 10.0 ** rng(0).uniform(-3, 3, n))[1]
    R = R.T.copy() if lower else R
    T = R.T if transpose else R
    B = T @ rng(1).normal(size=(n, 200))
    strange = np.where((R != 0) | np.eye(n, dtype=bool), R, np.nan)
    X = host(backend.solve_triangular(send(backend, strange), send(backend, B), lower=lower, transpose=transpose))
    assert (np.abs(T @ X - B) <= n * EPS * (np.abs(T) @ np.abs(X))).all()
