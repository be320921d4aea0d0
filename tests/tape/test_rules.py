"""Every rule, against Torch's derivatives and against central differences."""

import array_api_compat.torch as xpt
import numpy as np
import pytest
import torch

from tests.support import in_turn
from xvarpro.backends.tape import vjp

from .functions import CASES, Case
from .namespaces import NUMPY, host

ALL = [pytest.param(c, id=f"{name}-{i}") for name, cs in CASES.items() for i, c in enumerate(cs)]
SMOOTH = [p for p in ALL if p.values[0].smooth]
FLOAT = [p for p in ALL if all(a.size for a in p.values[0].args)]


class Single:
    """A namespace in which a function that asks for double precision gets single."""

    def __init__(self, xp):
        self._xp = xp

    def __getattr__(self, name):
        return getattr(self._xp, {"float64": "float32", "complex128": "complex64"}.get(name, name))


def flat(outputs):
    """The outputs of a function as a tuple."""
    return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)


def like(returned, values):
    return tuple(values) if isinstance(returned, (tuple, list)) else values[0]


def weights(outputs, seed=1):
    """Cotangents: normal numbers in the dtype of each output."""
    rng = np.random.default_rng(seed)
    ws = []
    for y in flat(outputs):
        w = rng.normal(size=y.shape)
        ws.append((w + 1j * rng.normal(size=y.shape) if np.iscomplexobj(y) else w).astype(y.dtype))
    return ws


def gradients(case: Case, raw, args=None):
    """Values and gradients by the tape, as NumPy arrays."""
    args = [raw.array(a) for a in (case.args if args is None else args)]
    y, pullback = vjp(lambda *xs: case.fun(xs[0].__array_namespace__(), *xs), args, **raw.how)
    values = [host(v) for v in flat(y)]
    ws = [raw.array(w) for w in weights(values)]
    return values, [host(g) for g in pullback(like(y, ws))]


def torch_gradients(case: Case):
    xs = [torch.from_numpy(np.array(a)).requires_grad_() for a in case.args]
    ys = flat((case.oracle or case.fun)(xpt, *xs))
    ws = [torch.from_numpy(np.asarray(w)) for w in weights([host(y) for y in ys])]
    pairs = [(y, w) for y, w in zip(ys, ws, strict=True) if y.requires_grad]
    if not pairs:
        return [host(y) for y in ys], [np.zeros_like(a) for a in case.args]
    gs = torch.autograd.grad([y for y, _ in pairs], xs, [w for _, w in pairs], allow_unused=True)
    return [host(y) for y in ys], [
        np.zeros_like(a) if g is None else host(g) for g, a in zip(gs, case.args, strict=True)
    ]


def double(case):
    return all(a.dtype.itemsize >= 8 for a in case.args)


def close(got, want, rtol=1e-9):
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape
        scale = max(1.0, float(np.max(np.abs(w), initial=0.0)))
        # written so that NaN fails
        assert np.all(np.abs(g - w) <= rtol * scale), f"got {g}, want {w}"


@in_turn("case", ALL)
def test_values_and_gradients_are_torchs(case):
    values, grads = gradients(case, NUMPY)
    want_values, want_grads = torch_gradients(case)
    close(values, want_values, 1e-12 if double(case) else 1e-6)
    close(grads, want_grads, 1e-9 if double(case) else 1e-6)
    assert [g.dtype for g in grads] == [a.dtype for a in case.args]


@in_turn("case", SMOOTH)
def test_second_derivatives_are_central_differences_of_gradients(case):
    """A Hessian-vector product by a tape on a tape: every rule is itself differentiable."""
    rng = np.random.default_rng(3)
    direction = [rng.normal(size=a.shape).astype(a.dtype) for a in case.args]
    ws = weights(gradients(case, NUMPY)[0])

    def gradient(*xs):
        ns = xs[0].__array_namespace__()
        y, pullback = vjp(lambda *zs: case.fun(zs[0].__array_namespace__(), *zs), xs, xp=ns, index_add=None)
        return pullback(like(y, [ns.asarray(w) for w in ws]))

    _, pullback = vjp(gradient, case.args, **NUMPY.how)
    product = [host(g) for g in pullback(tuple(direction))]
    h = 1e-5
    ahead, behind = (
        gradients(case, NUMPY, [a + t * d for a, d in zip(case.args, direction, strict=True)])[1] for t in (h, -h)
    )
    # the Hessian is symmetric in the real inner product, so its transpose is itself
    want = [(p - m) / (2 * h) for p, m in zip(ahead, behind, strict=True)]
    scale = max(1.0, *(float(np.max(np.abs(g), initial=0.0)) for g in ahead))
    close(product, want, 2e-6 * scale)


@in_turn("case", FLOAT)
def test_single_precision_stays_single(case):
    args = [a.astype(np.complex64 if np.iscomplexobj(a) else np.float32) for a in case.args]
    seen = []

    def fun(*xs):
        y = case.fun(Single(xs[0].__array_namespace__()), *xs)
        seen.extend(host(v.value).dtype for v in flat(y))
        return y

    y, pullback = vjp(fun, [NUMPY.array(a) for a in args], **NUMPY.how)
    assert not set(seen) & {np.dtype("float64"), np.dtype("complex128")}
    grads = pullback(like(y, [NUMPY.array(w) for w in weights([host(v) for v in flat(y)])]))
    assert [host(g).dtype for g in grads] == [a.dtype for a in args]


@pytest.mark.parametrize(
    "fun",
    [
        lambda xp, x: xp.where(x > 0, xp.sqrt(x), x),
        lambda xp, x: xp.where(x > 0, xp.log(x), 0.0 * x),
        lambda xp, x: xp.where(x > 0, 1.0 / x, x),
        lambda xp, x: xp.sqrt(x * 0.0) * x,
    ],
)
def test_undefined_masked_branches_are_undefined_as_in_torch(fun):
    """A NaN in the branch not taken does reach the gradient, there as here: models must mask the argument too."""
    x = np.array([0.5, 0.0, -1.0])
    case = Case(fun, (x,))
    with np.errstate(all="ignore"):
        _, grads = gradients(case, NUMPY)
    _, want = torch_gradients(case)
    np.testing.assert_array_equal(np.isnan(grads[0]), np.isnan(want[0]))
    np.testing.assert_allclose(grads[0], want[0], rtol=1e-12)
