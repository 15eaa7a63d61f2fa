"""One request's way from logits to tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from puna.errors import GenerationError, OptionError
from puna.ops import Backend
from puna.options import Options
from puna.sample.penalties import Penalties
from puna.sample.random import Random


class Sampler:
    """Draws tokens as a request's options say, from its own stream of random numbers.

    Order: bias, penalties, allowed tokens, top-k, typical-p, temperature, top-p, min-p, draw. Temperature 0
    takes the largest logit instead (the lowest id wins a tie) and draws no random number; otherwise every
    call of `sample` draws exactly one.
    """

    def __init__(self, options: Options, vocab_size: int, ops: Backend) -> None:
        """Raises `OptionError` for a bias on a token that does not exist."""
        self._options = options
        self._ops = ops
        self._vocab_size = vocab_size
        self._biased = np.array([token for token, _ in options.logit_bias], np.int64)
        self._bias = np.array([bias for _, bias in options.logit_bias], np.float32)
        if self._biased.size and self._biased.max() >= vocab_size:
            raise OptionError(
                f'option "logit_bias" must have ids below {vocab_size}, the size of the vocabulary, '
                f"not {self._biased.max()}"
            )
        self._random = Random.seeded(options.seed)
        self._penalties = Penalties(
            vocab_size,
            options.repeat_last_n,
            repeat=options.repeat_penalty,
            frequency=options.frequency_penalty,
            presence=options.presence_penalty,
        )

    def accept(self, token: int) -> None:
        """Add a token of the sequence, prompt or generated, to the history the penalties look at."""
        self._penalties.accept(token)

    def sample(self, logits: NDArray[np.float32], allowed: NDArray[np.generic] | None = None) -> int:
        """The next token's id; `logits` [vocab] are left as they are.

        allowed: bool [vocab], or a bit mask of 32-bit words (bit i of word w: token 32 w + i), such as a
        grammar gives; only tokens in it can be drawn. Raises `GenerationError` when the logits are no
        numbers (NaN, +inf) or no token is possible.
        """
        if logits.shape != (self._vocab_size,) or logits.dtype != np.float32:
            raise GenerationError(
                f"the model gave {logits.dtype} logits of shape {list(logits.shape)}, "
                f"expected float32 [{self._vocab_size}]"
            )
        if self._biased.size:
            logits = logits.copy()
            logits[self._biased] += self._bias
        logits = self._penalties.apply(logits)
        if allowed is not None:
            logits = np.where(_unpacked(allowed, self._vocab_size), logits, np.float32(-np.inf))
        options = self._options
        temperature = max(options.temperature, 0.0)
        token = self._ops.choose(
            np.ascontiguousarray(logits),
            temperature=temperature,
            top_k=options.top_k,
            typical_p=_unit(options.typical_p),
            top_p=_unit(options.top_p),
            min_p=_unit(options.min_p),
            uniform=self._random.uniform() if temperature else 0.0,
        )
        if token is None:
            raise GenerationError(_complaint(logits, allowed is not None))
        return token


def _unit(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def _unpacked(allowed: NDArray[np.generic], vocab_size: int) -> NDArray[np.bool_]:
    if allowed.dtype == np.bool_ and allowed.shape == (vocab_size,):
        return allowed.astype(np.bool_, copy=False)
    if allowed.dtype in (np.int32, np.uint32) and allowed.size * 32 >= vocab_size:
        octets = np.ascontiguousarray(allowed).astype("<u4", copy=False).view(np.uint8)
        return np.unpackbits(octets, count=vocab_size, bitorder="little").view(np.bool_)
    raise ValueError(
        f"allowed tokens: {allowed.dtype} {list(allowed.shape)} for a vocabulary of {vocab_size}"
    )


def _complaint(logits: NDArray[np.float32], masked: bool) -> str:
    if not logits.size:
        return "there are no logits to choose a token from"
    for what, wrong in (("NaN", np.isnan(logits)), ("+infinity", np.isposinf(logits))):
        if wrong.any():
            first = int(np.argmax(wrong))
            return (
                f"the model computed {what} for {int(wrong.sum())} of {logits.size} logits, first for token "
                f"{first}: the model file may be damaged, or its values too large for the cache type"
            )
    if masked:
        return "no token is possible: all those the grammar allows have a probability of zero"
    return f"no token is possible: all {logits.size} logits are -infinity"
