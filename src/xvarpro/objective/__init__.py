"""The reduced objective and its gradient."""
