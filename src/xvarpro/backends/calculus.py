"""Derivatives that follow from a backend's pull-back."""

from __future__ import annotations

from collections.abc import Callable

from xvarpro.backends.interface import Backend, Linear
from xvarpro.core.namespace import namespace_of, positive_or_one
from xvarpro.core.struct import Array, Leaves


def hessian_product(
    backend: Backend, fun: Callable[..., Array], primals: Leaves, constants: Leaves = ()
) -> tuple[Leaves, Linear]:
    """Gradient of a real 0-d ``fun(*primals, *constants)``, and the map from tangents to Hessian times tangents.

    The map may be called often; `fun` is evaluated once.
    """
    n = len(primals)

    def gradient(*arrays: Array) -> Leaves:
        (value,), pullback = backend.vjp(lambda *x: (fun(*x),), arrays[:n], arrays[n:])
        return pullback((namespace_of(value).ones_like(value),))

    # a Hessian is its own transpose
    return backend.vjp(gradient, primals, constants)


def directional_derivative(backend: Backend, fun: Callable[[Array], Array], x: Array) -> Callable[[Array], Array]:
    """The map ``d -> dfun(x) d`` of a function that may contain loops of the backend's.

    By central differences where derivatives come from the tape, which does not record a loop that ends where the values
    say so; `directional_error` is their relative error.
    """
    if not _is_taped(backend):
        _, push = backend.linearise(lambda x: (fun(x),), (x,))
        return lambda d: push((d,))[0]
    return central_difference(fun, x)


def central_difference(fun: Callable[[Array], Array], x: Array) -> Callable[[Array], Array]:
    """The map ``d -> dfun(x) d`` from values to either side, with an error of ``eps^(2/3)``."""
    xp = namespace_of(x)
    size, eps = xp.max(xp.abs(x)), xp.finfo(x.dtype).eps

    def slope(d: Array) -> Array:
        length = xp.max(xp.abs(d))
        # the step that balances an error of h^2 with rounding of eps / h
        h = eps ** (1 / 3) * size / positive_or_one(length)
        h = positive_or_one(h)
        return (fun(x + h * d) - fun(x - h * d)) / (2 * h)

    return slope


def directional_error(backend: Backend, eps: float) -> float:
    """Relative error of `directional_derivative` in a dtype of that `eps`."""
    return eps ** (2 / 3) if _is_taped(backend) else eps


def _is_taped(backend: Backend) -> bool:
    from xvarpro.backends.eager import TapedBackend  # loads the tape, which every import of the package would pay for

    return isinstance(backend, TapedBackend)
