"""Estimators for scikit-learn: separable problems with its interface, NumPy outside, any backend inside.

They need scikit-learn, which ``pip install "xvarpro[sklearn]"`` brings; ``import xvarpro`` does not load it.
"""

from xvarpro.errors import needs

with needs("xvarpro.sklearn", "sklearn"):
    from xvarpro.sklearn._archetypes import ArchetypalAnalysis
    from xvarpro.sklearn._autoencoder import SparseAutoencoder
    from xvarpro.sklearn._dictionary import NMF, ConstrainedDictionary
    from xvarpro.sklearn._dmd import DMD
    from xvarpro.sklearn._head import NeuralHeadClassifier, NeuralHeadRegressor
    from xvarpro.sklearn._penalties import LearnedPenaltyClassifier
    from xvarpro.sklearn._regressor import VarProRegressor

__all__ = [
    "DMD",
    "NMF",
    "ArchetypalAnalysis",
    "ConstrainedDictionary",
    "LearnedPenaltyClassifier",
    "NeuralHeadClassifier",
    "NeuralHeadRegressor",
    "SparseAutoencoder",
    "VarProRegressor",
]
