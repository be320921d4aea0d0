"""Estimators for scikit-learn: separable problems with its interface, NumPy outside, any backend inside.

They need scikit-learn, which ``pip install "xvarpro[sklearn]"`` brings; ``import xvarpro`` does not load it.
"""

from xvarpro.sklearn._dictionary import NMF, ConstrainedDictionary

__all__ = ["NMF", "ConstrainedDictionary"]
