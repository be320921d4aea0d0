"""Amplitudes integrated out: marginal likelihoods, their evidence, and draws of what they leave open."""
