"""The CuPy adapter where there is no GPU: its own text, over a stand-in for cupy that computes with NumPy.

It runs in an interpreter of its own, so that nothing of the stand-in reaches other tests. What it cannot show is CUDA:
tests marked `cuda` do, where there is a device.
"""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest

STAND_IN = dedent('''
    """`cupy` and `cupyx`, as far as the adapter and the tape use them, over NumPy."""
    import contextlib, sys, types
    import numpy as np

    cp = types.ModuleType("cupy")
    cp.__dict__.update({k: v for k, v in vars(np).items() if not k.startswith("__")})
    cp.__version__ = "stand-in"

    class ndarray(np.ndarray):
        """CuPy's arrays: 0-d results stay arrays, and there is a device."""
        @property
        def device(self):
            return Device(0)
        @property
        def data(self):
            return types.SimpleNamespace(ptr=self.__array_interface__["data"][0])
        def get(self):
            return np.array(self)
        def __array_wrap__(self, array, context=None, return_scalar=False):
            return np.asarray(array).view(ndarray)
    ndarray.__module__ = "cupy"
    cp.ndarray = ndarray

    class Device:
        def __init__(self, id=0):
            self.id = id
        def __enter__(self):
            return self
        def __exit__(self, *args):
            return None
        def __eq__(self, other):
            return isinstance(other, Device) and other.id == self.id
        def __hash__(self):
            return hash(self.id)
        def __str__(self):
            return f"<CUDA Device {self.id}>"

    def own(fun):
        def wrapped(*args, **kwargs):
            out = fun(*args, **kwargs)
            if isinstance(out, tuple):
                return tuple(np.asarray(x).view(ndarray) for x in out)
            return np.asarray(out).view(ndarray) if isinstance(out, (np.ndarray, np.generic)) else out
        return wrapped

    KEEP = {"finfo", "iinfo", "result_type", "can_cast", "promote_types", "issubdtype", "isdtype", "ndim", "shape"}
    for name, value in list(vars(cp).items()):
        if callable(value) and not isinstance(value, type) and name not in KEEP:
            setattr(cp, name, own(value))
    cp.asarray = lambda x, dtype=None, order=None: np.asarray(x, dtype=dtype).view(ndarray)
    cp.array = lambda x, dtype=None, copy=True: np.array(x, dtype=dtype).view(ndarray)
    cp.asnumpy = lambda x: np.array(x)

    linalg = types.ModuleType("cupy.linalg")
    for name in dir(np.linalg):
        value = getattr(np.linalg, name)
        if callable(value) and not isinstance(value, type):
            setattr(linalg, name, own(value))

    def cholesky(A):
        """cuSOLVER raises nothing: what it leaves behind has a pivot that is not positive."""
        try:
            return np.linalg.cholesky(np.asarray(A)).view(ndarray)
        except np.linalg.LinAlgError:
            return (0 * np.asarray(A) - np.eye(A.shape[-1], dtype=A.dtype)).view(ndarray)
    linalg.cholesky = cholesky
    cp.linalg = linalg
    fft = types.ModuleType("cupy.fft")
    for name in dir(np.fft):
        if callable(getattr(np.fft, name)):
            setattr(fft, name, own(getattr(np.fft, name)))
    cp.fft = fft

    cuda = types.ModuleType("cupy.cuda")
    cuda.Device = Device
    device = types.ModuleType("cupy.cuda.device")
    device.Device = Device
    cuda.device = device
    runtime = types.SimpleNamespace(getDevice=lambda: 0, getDeviceCount=lambda: 1, runtimeGetVersion=lambda: 12000)
    cuda.runtime = runtime
    cp.cuda = cuda

    cupyx = types.ModuleType("cupyx")
    cupyx.errstate = lambda **kwargs: contextlib.nullcontext()
    cupyx.geterr = lambda: {"linalg": "ignore"}
    def scatter_add(x, key, v):
        np.add.at(x.view(np.ndarray), np.asarray(key) if isinstance(key, np.ndarray) else key, np.asarray(v))
    cupyx.scatter_add = scatter_add
    scipy, scipy_linalg = types.ModuleType("cupyx.scipy"), types.ModuleType("cupyx.scipy.linalg")
    def solve_triangular(R, B, lower=False, trans=0, check_finite=True):
        R = np.asarray(R)
        R = np.tril(R) if lower else np.triu(R)
        with np.errstate(all="ignore"):
            try:
                return np.linalg.solve(R.T if trans else R, np.asarray(B)).view(ndarray)
            except np.linalg.LinAlgError:
                return np.full_like(B, np.inf)
    scipy_linalg.solve_triangular = solve_triangular
    cupyx.scipy, scipy.linalg = scipy, scipy_linalg
    modules = [cp, linalg, fft, cuda, device, cupyx, scipy, scipy_linalg]
    sys.modules.update({module.__name__: module for module in modules})
    cp.__spec__ = types.SimpleNamespace(name="cupy", loader=None)

    # the stand-in's arrays are NumPy's by inheritance: array-api-compat has to take them for CuPy's
    import array_api_compat
    from array_api_compat.common import _helpers
    is_subclass = _helpers._issubclass_fast
    _helpers._issubclass_fast = lambda kind, module, name: (
        is_subclass(kind, module, name) and not (module == "numpy" and issubclass(kind, ndarray))
    )

    import xvarpro as xv
    import array_api_compat.cupy
    assert array_api_compat.array_namespace(cp.ones(2)) is array_api_compat.cupy
    backend = xv.backends.get("cupy")

    def decays(theta, data):
        xp = xv.array_namespace(theta)
        return xp.exp(-xp.expand_dims(data["t"], axis=1) * theta)

    t = np.linspace(0.0, 2.0, 30)
    y = np.exp(-t) + 0.5 * np.exp(-4 * t) + 0.1 * np.sin(9 * t)
    problem = xv.separable(decays, y, data={"t": t}, lam=1e-3)
    start, box = np.array([0.5, 8.0]), xv.sets.Box(0.0, 10.0)
''')


def on_the_stand_in(code):
    done = subprocess.run([sys.executable, "-c", STAND_IN + dedent(code)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_arrays_belong_to_the_adapter():
    on_the_stand_in("""
        x = backend.asarray(np.arange(3.0), device=backend.parse_device("cuda:0"))
        assert isinstance(x, cp.ndarray)
        assert xv.backends.of(x) is backend
        assert backend.dtype_name(x) == "float64"
        assert backend.devices() == ["cuda:0"]
        assert backend.to_floats([x[0], x[2]]) == [0.0, 2.0]
        assert type(backend.to_numpy(x)) is np.ndarray
    """)


def test_factorisations():
    on_the_stand_in("""
        A = np.random.default_rng(0).normal(size=(6, 3))
        there = backend.asarray(A)
        with backend.scope("float64"):
            Q, R = backend.qr(there)
            assert np.abs(np.asarray(Q @ R) - A).max() < 1e-14
            L = backend.cholesky(there.T @ there)
            assert np.abs(np.asarray(L @ L.T) - A.T @ A).max() < 1e-13
            assert np.isnan(np.asarray(backend.cholesky(backend.asarray(np.diag([1.0, -1.0]))))).any()
            X = backend.solve_triangular(L, L.T @ there.T, lower=True, transpose=True)
            assert np.abs(np.asarray(X) - A.T).max() < 1e-13
            key = backend.asarray(np.array([0, 0, 1]))
            zeros = backend.asarray(np.zeros(2))
            assert backend.index_add(zeros, key, backend.asarray(np.ones(3))).tolist() == [2.0, 1.0]
            assert zeros.tolist() == [0.0, 0.0]
    """)


@pytest.mark.parametrize("levels", ["separable", "bilevel"])
def test_value_and_gradient(levels):
    on_the_stand_in(f"""
        if {levels!r} == "bilevel":
            lower, upper = xv.Level(decays, y, lam=1e-3), xv.Level(decays, y[::-1].copy())
            problem = xv.bilevel(lower=lower, upper=upper, data={{"t": t}})
        value, gradient = xv.value_and_gradient(problem, start, backend="cupy")
        want, want_gradient = xv.value_and_gradient(problem, start)
        assert abs(value / want - 1) < 1e-13
        assert np.abs(gradient - want_gradient).max() < 1e-12 * np.abs(want_gradient).max()
        assert type(gradient) is np.ndarray
    """)


def test_a_whole_solve():
    on_the_stand_in("""
        for name in ("cr_varpro", "FrankWolfe", "AcceleratedProjectedGradient", "SpectralProjectedGradient"):
            method = getattr(xv.algorithms, name)()
            here, there = (xv.solve(problem, start, over=box, algorithm=method, max_iter=15, tol=0.0, backend=b)
                           for b in ("numpy", "cupy"))
            assert there.provenance["backend"] == "cupy"
            assert there.n_iter == here.n_iter, name
            assert np.abs(there.trace.value / here.trace.value - 1).max() < 1e-9, name
            assert np.abs(there.w - here.w).max() < 1e-6, name
    """)


def test_a_solve_that_stays_there():
    on_the_stand_in("""
        theta0 = backend.asarray(start)
        fit = xv.solve(problem, theta0, over=box, max_iter=5)
        assert isinstance(fit.theta, cp.ndarray)
        assert fit.provenance["backend"] == "cupy"
        assert "0" in fit.provenance["device"]
        assert isinstance(fit.w, cp.ndarray)
    """)


def test_rank_deficiency_and_compression():
    on_the_stand_in("""
        twins = xv.separable(lambda theta, data: decays(theta[:1] + 0 * theta, data), y, data={"t": t})
        assert xv.solve(twins, start, backend="cupy").status is xv.Status.RANK_DEFICIENT
        Y = np.random.default_rng(0).normal(size=(30, 100))
        many = xv.separable(decays, Y, data={"t": t}, lam=0.1)
        fit = xv.solve(many, start, over=box, max_iter=3, backend="cupy")
        assert fit.provenance["compressed"] is True
        assert fit.w.shape == (2, 100)
    """)


def test_the_stand_in_would_show_a_failure():
    with pytest.raises(AssertionError, match="the traceback"):
        on_the_stand_in("raise ValueError('the traceback')")


def test_other_devices_than_cuda_are_refused():
    on_the_stand_in("""
        try:
            xv.solve(problem, start, backend="cupy", device="cpu")
        except ValueError as error:
            assert "CUDA devices" in str(error)
        else:
            raise AssertionError
    """)


def test_sums_over_repeated_indices_are_taken_in_their_order_where_that_is_asked_for():
    on_the_stand_in("""
        import xvarpro.backends.cupy as adapter
        calls = []
        adapter.scatter_add = lambda out, key, v: (calls.append("atomic"), np.add.at(out, key, v))
        held = backend.deterministic()
        x, key, v = (backend.asarray(a) for a in (np.zeros(3), np.array([1, 1, 2]), np.array([1.0, 2.0, 3.0])))
        for chosen, expected in ((held, []), (backend, ["atomic"])):
            calls.clear()
            with chosen.scope("float64"):
                out = chosen.index_add(x, key, v)
                inside = backend.index_add(x, key, v)  # as an array finds its backend
            assert isinstance(out, cp.ndarray)
            assert out.tolist() == inside.tolist() == [0.0, 3.0, 3.0]
            assert calls == 2 * expected
        assert x.tolist() == [0.0, 0.0, 0.0]
        fit = xv.solve(problem, start, over=box, max_iter=2, backend="cupy", deterministic=True)
        assert fit.provenance["determinism"]["held"]
        assert "cuSOLVER" in fit.provenance["determinism"]["unpromised"][0]
    """)
