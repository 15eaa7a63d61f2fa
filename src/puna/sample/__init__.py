"""From logits to tokens: penalties, transforms, draws and log-probabilities, in C++ and numpy."""

from puna.sample.log_probabilities import log_probabilities
from puna.sample.sampler import Sampler

__all__ = ["Sampler", "log_probabilities"]
