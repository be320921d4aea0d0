"""Comparison of one solve on several backends, and verification of saved results."""
