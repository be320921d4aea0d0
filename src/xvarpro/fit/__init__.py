"""Fits: what solves, what a solve returns, and what solves again or draws."""
