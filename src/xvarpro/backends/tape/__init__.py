"""Reverse-mode derivatives over any array API namespace: what NumPy, CuPy and array-api-strict lack.

`vjp` runs a function on traced arrays; `rules` is the table of derivatives; `NoRuleError` names a function that has
none.
"""

from xvarpro.backends.tape import namespace  # noqa: F401  (importing it gives the tape its functions)
from xvarpro.backends.tape.engine import vjp
from xvarpro.backends.tape.errors import NoRuleError

__all__ = ["NoRuleError", "vjp"]
