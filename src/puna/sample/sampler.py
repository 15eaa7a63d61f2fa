"""One request's way from logits to tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from puna.errors import GenerationError, OptionError
from puna.model.tokenizer import Tokenizer
from puna.ops import Backend, sampling
from puna.options import Options
from puna.sample.dry import Dry
from puna.sample.mirostat import Mirostat
from puna.sample.penalties import Penalties
from puna.sample.random import Random


@dataclass(frozen=True)
class Distribution:
    """What a token was drawn from: tokens, the likeliest first, and their probabilities (of any sum)."""

    ids: sampling.Ids
    probabilities: sampling.Probabilities

    def log_probabilities(self, token: int, top: int) -> tuple[float, list[tuple[int, float]]]:
        """The log-probability of `token`, which was drawn, and the `top` likeliest tokens with theirs."""
        shares = np.log(self.probabilities / self.probabilities.sum())
        chosen = shares[np.flatnonzero(self.ids == token)[0]]
        return float(chosen), [(int(self.ids[i]), float(shares[i])) for i in range(min(top, shares.size))]


class Sampler:
    """Draws tokens as a request's options say, from its own stream of random numbers.

    Order: bias, banned tokens, penalties, DRY, allowed tokens, top-n-sigma, top-k, typical-p, temperature,
    top-p, min-p, XTC, draw; Mirostat takes the place of all but temperature and what is before top-k.
    Temperature 0 takes the largest logit instead (the lowest id wins a tie) and draws no random number;
    otherwise every call of `sample` draws exactly one, and another one before it if XTC is on.
    """

    def __init__(
        self,
        options: Options,
        vocab_size: int,
        ops: Backend,
        tokenizer: Tokenizer | None = None,
        *,
        keeps_distribution: bool = False,
    ) -> None:
        """`tokenizer` is for DRY and `min_tokens`; `distribution` is only there if it is to be kept.

        Raises `OptionError` for a bias on a token that does not exist, or a ban of one.
        """
        self._options = options
        self._ops = ops
        self._vocab_size = vocab_size
        self._biased = np.array([token for token, _ in options.logit_bias], np.int64)
        self._bias = np.array([bias for _, bias in options.logit_bias], np.float32)
        self._banned = np.array(options.banned_tokens, np.int64)
        for name, tokens in (("logit_bias", self._biased), ("banned_tokens", self._banned)):
            if tokens.size and tokens.max() >= vocab_size:
                raise OptionError(
                    f'option "{name}" must have ids below {vocab_size}, the size of the vocabulary, '
                    f"not {tokens.max()}"
                )
        self._keeps_distribution = keeps_distribution
        self.distribution = Distribution(np.empty(0, np.int64), np.empty(0))  # that of the last draw
        self._random = Random.seeded(options.seed)
        self._penalties = Penalties(
            vocab_size,
            options.repeat_last_n,
            repeat=options.repeat_penalty,
            frequency=options.frequency_penalty,
            presence=options.presence_penalty,
        )
        self._ends = np.array(sorted(tokenizer.eos_ids) if tokenizer is not None else [], np.int64)
        self._until_end = options.min_tokens
        self._dry: Dry | None = None
        if options.dry_multiplier and options.dry_penalty_last_n and tokenizer is not None:
            self._dry = Dry(
                tokenizer.piece,
                multiplier=options.dry_multiplier,
                base=options.dry_base,
                allowed_length=options.dry_allowed_length,
                window=options.dry_penalty_last_n,
                breakers=options.dry_sequence_breakers,
            )
        self._mirostat: Mirostat | None = None
        if options.mirostat and options.temperature > 0:
            self._mirostat = Mirostat(
                options.mirostat, options.mirostat_tau, options.mirostat_eta, vocab_size
            )

    def accept(self, token: int, *, generated: bool = False) -> None:
        """Add a token of the sequence to the history that penalties look at, prompt or generated."""
        self._penalties.accept(token)
        if self._dry is not None:
            self._dry.accept(token)
        if generated and self._until_end:
            self._until_end -= 1

    def sample(self, logits: NDArray[np.float32], allowed: NDArray[np.generic] | None = None) -> int:
        """The next token's id; `logits` [vocab] are left as they are.

        allowed: bool [vocab], or a bit mask of 32-bit words (bit i of word w: token 32 w + i), such as a
        grammar gives; only tokens in it can be drawn. Raises `GenerationError` when the logits are no
        numbers (NaN, +inf) or no token is possible.
        """
        logits = self._adjusted(logits, allowed)
        options = self._options
        if options.temperature > 0 and self._is_stepwise:
            return self._draw(logits, masked=allowed is not None)
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
        if self._keeps_distribution:
            found = self._candidates(logits) if temperature else (np.array([token]), np.ones(1))
            self.distribution = Distribution(*found)
        return token

    @property
    def _is_stepwise(self) -> bool:
        """Whether an option is on that the backend's one call does not have."""
        options = self._options
        return bool(self._mirostat or options.xtc_probability or options.dynatemp_range)

    def _adjusted(
        self, logits: NDArray[np.float32], allowed: NDArray[np.generic] | None
    ) -> NDArray[np.float32]:
        """The logits that tokens are drawn by."""
        if logits.shape != (self._vocab_size,) or logits.dtype != np.float32:
            raise GenerationError(
                f"the model gave {logits.dtype} logits of shape {list(logits.shape)}, "
                f"expected float32 [{self._vocab_size}]"
            )
        ended = self._ends if self._until_end else self._ends[:0]
        if self._biased.size or self._banned.size or ended.size:
            logits = logits.copy()
            logits[self._biased] += self._bias
            logits[self._banned] = -np.inf
            logits[ended] = -np.inf
        logits = self._penalties.apply(logits)
        if self._dry is not None:
            logits = self._dry.apply(logits)
        if allowed is not None:
            logits = np.where(_unpacked(allowed, self._vocab_size), logits, np.float32(-np.inf))
        if self._options.top_n_sigma > 0:
            logits = sampling.top_n_sigma(logits, self._options.top_n_sigma)
        return logits

    def _draw(self, logits: NDArray[np.float32], masked: bool) -> int:
        """A draw from `logits` one option after another."""
        if not logits.size or not np.isfinite(logits.max()):
            raise GenerationError(_complaint(logits, masked))
        ids, probabilities = self._candidates(logits)
        if self._keeps_distribution:
            self.distribution = Distribution(ids, probabilities)
        place = sampling.draw(probabilities, self._random.uniform())
        if self._mirostat is not None:
            self._mirostat.drawn(float(probabilities[place] / probabilities.sum()))
        return int(ids[place])

    def _candidates(self, logits: NDArray[np.float32]) -> tuple[sampling.Ids, sampling.Probabilities]:
        """The tokens that may be drawn, the likeliest first, and their probabilities (of any sum)."""
        options = self._options
        most = logits.size if self._mirostat or options.top_k <= 0 else min(options.top_k, logits.size)
        ids = self._ops.top_k(np.ascontiguousarray(logits), most)
        ids = ids[logits[ids] > -np.inf]
        if options.typical_p < 1 and self._mirostat is None:
            ids = ids[sampling.typical_p(sampling.softmax(logits[ids]), _unit(options.typical_p))]
        temperature = options.temperature
        if options.dynatemp_range:
            temperature = sampling.dynamic_temperature(
                logits[ids], temperature, options.dynatemp_range, options.dynatemp_exponent
            )
        probabilities = sampling.softmax(sampling.temper(logits[ids], temperature))
        if self._mirostat is not None:
            kept = self._mirostat.keep(probabilities)
            return ids[:kept], probabilities[:kept]
        probabilities = probabilities[: sampling.top_p(probabilities, _unit(options.top_p))]
        probabilities = probabilities[: sampling.min_p(probabilities, _unit(options.min_p))]
        left_out = 0
        if options.xtc_probability and self._random.uniform() < options.xtc_probability:
            shares = probabilities / probabilities.sum()
            left_out = sampling.exclude_top_choices(shares, options.xtc_threshold)
        return ids[left_out : probabilities.size], probabilities[left_out:]


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
