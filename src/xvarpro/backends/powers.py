"""Powers of two, to the last bit, from the bits of floating-point numbers."""

from __future__ import annotations

from xvarpro.backends.registry import owner
from xvarpro.core.namespace import device, dtype_name, namespace_of
from xvarpro.core.struct import Array


def power_of_two(x: Array) -> Array:
    """The next power of two of every entry > 0: a division by it rounds nothing. 1 for 0, NaN and inf.

    It is a normal number: the smallest one for what is below, the largest one for what is above.

    No function of a framework is exact here: on a GPU `pow` and `log2` are off by some last digits, and so is `ldexp`
    of PyTorch and of JAX, which is a product with `pow`. Bits are the same everywhere, also in programs that flush
    subnormal numbers. The next power of two is the next number without digits after the point.
    """
    if not hasattr(x, "view"):  # of a framework that follows the standard alone
        backend = owner(x)
        return backend.asarray(power_of_two(backend.to_numpy(x)), dtype=dtype_name(x), device=device(x))
    xp = namespace_of(x)
    whole, digits, bias = (xp.int64, 52, 1023) if x.dtype == xp.float64 else (xp.int32, 23, 127)
    unit = 1 << digits  # the last bit of the exponent
    one, inf = bias * unit, (2 * bias + 1) * unit
    bits = x.view(whole)
    bits = xp.where((bits > 0) & (bits < inf), bits, one)
    bits = (bits + (unit - 1)) & -unit
    return xp.where(bits < inf, bits, inf - unit).view(x.dtype)
