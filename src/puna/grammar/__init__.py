"""Constrained answers: which tokens a requested format allows next."""
