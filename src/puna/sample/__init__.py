"""Sampling: from logits to tokens, with penalties, options and log-probabilities."""

from puna.sample.sampler import Sampler, log_probabilities, sample_all

__all__ = ["Sampler", "log_probabilities", "sample_all"]
