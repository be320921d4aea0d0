"""The rules, one file per family. Importing this package fills the tables of `table`.

A new rule is an entry in one of these files and a case in `tests.tape.functions`; a test fails until both
exist.
"""

from xvarpro.backends.tape.rules import elementwise, fourier, indexing, linalg, norms, products, reductions, shapes

__all__ = ["elementwise", "fourier", "indexing", "linalg", "norms", "products", "reductions", "shapes"]
