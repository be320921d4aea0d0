"""Derivatives of solutions, and solves as layers of PyTorch and JAX programs."""
