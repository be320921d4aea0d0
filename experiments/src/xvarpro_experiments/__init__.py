"""The experiments of the constrained variable projection paper, with the methods that compete on them."""
