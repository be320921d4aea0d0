"""Reverse-mode derivatives over any array API namespace: what NumPy, CuPy and array-api-strict lack.

`vjp` runs a function on traced arrays; `rules` is the table of derivatives; `NoRuleError` names a function that has
none. `batching.vmap` runs one on arrays with a hidden axis.
"""

from xvarpro.backends.tape import namespace  # noqa: F401  (importing it gives the tape its functions)
from xvarpro.backends.tape.engine import ground, vjp
from xvarpro.backends.tape.errors import NoBatchError, NoRuleError

__all__ = ["NoBatchError", "NoRuleError", "ground", "vjp"]
