"""Every function of the array API standard that models are written with: `CASES[name]` is a list of signatures.

The tape has a rule for each, and a rule without a case fails a test.
"""

from tests.tape.functions import elementwise, fourier, indexing, norms, products, reductions, shapes, systems  # noqa: F401 - each fills the table
from tests.tape.functions._table import CASES, Case

__all__ = ["CASES", "Case"]
