"""Sampling of tokens by a request's options, and log-probabilities.

DRY follows p-e-w, oobabooga/text-generation-webui#5677, as llama.cpp does it. Mirostat keeps the surprise of
a text near a target (Basu et al., arXiv:2007.14966). A seed gives the same stream of random numbers as in
Ollama's engine.
"""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from puna.errors import GenerationError, OptionError
from puna.ops import Array, Backend, sampling
from puna.ops.sampling import Floats, Ids
from puna.options import Options
from puna.sample.transcript import TokenRules
from puna.tokenizer import Tokenizer

_MASK = 2**64 - 1
_MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645
_INCREMENT = 0x5851F42D4C957F2D14057B7EF767814F
_OUTPUT_MULTIPLIER = 0xDA942042E4DD58B5


class Random:
    """A 128-bit permuted congruential generator with DXSM output (O'Neill 2014; Go's math/rand/v2)."""

    def __init__(self, high: int, low: int) -> None:
        self._state = (high & _MASK) << 64 | low & _MASK

    @classmethod
    def seeded(cls, seed: int) -> Random:
        """Return the generator of a seed; -1 gives an unpredictable one."""
        if seed == -1:
            return cls(secrets.randbits(64), secrets.randbits(64))
        return cls(seed, (seed & _MASK) ^ 0x9E3779B9)

    def bits(self) -> int:
        """Return the next 64 random bits."""
        self._state = (self._state * _MULTIPLIER + _INCREMENT) % 2**128
        high, low = self._state >> 64, self._state & _MASK
        high ^= high >> 32
        high = high * _OUTPUT_MULTIPLIER & _MASK
        high ^= high >> 48
        return high * (low | 1) & _MASK

    def uniform(self) -> float:
        """Return a random multiple of 2**-24 in [0, 1)."""
        return (self.bits() >> 32 & 0xFFFFFF) / 2**24


#: The log-probability of a token, and those of the likeliest tokens, descending.
LogProbabilities = tuple[float, list[tuple[int, float]]]


def log_probabilities(rows: Sequence[tuple[Array, int]], top: int, ops: Backend) -> list[LogProbabilities]:
    """Return for each row, its logits [vocab] and a token, that token's log-probability and the `top` best.

    These are natural logarithms of the softmax over the raw logits. The token need not be among the
    likeliest. Raises `GenerationError` when logits have no finite maximum.
    """
    for logits, token in rows:
        if not 0 <= token < len(logits):
            raise GenerationError(f"token {token} is not in the vocabulary of {len(logits)}")
    return [_in_logarithms(found) for found in ops.likeliest(rows, max(top, 0))]


def _in_logarithms(found: sampling.Likeliest) -> LogProbabilities:
    if not math.isfinite(found.largest):
        raise GenerationError("log-probabilities: the model computed no finite logits")
    largest, logarithm = np.float32(found.largest), np.float32(np.log(found.total))
    best = found.logits - largest - logarithm
    chosen = np.float32(found.logit) - largest - logarithm
    return float(chosen), list(zip(found.ids.tolist(), best.tolist(), strict=True))


#: Up to this many tokens, searching the window is faster than searching the vocabulary.
_SHORT = 2048


class Penalties:
    """Repeat, frequency and presence penalties over the last `window` tokens of a sequence.

    A window of 0 turns them off, -1 is the whole history. Prompt tokens count like generated ones.
    """

    def __init__(
        self,
        vocab_size: int,
        window: int,
        *,
        repeat: float = 1.0,
        frequency: float = 0.0,
        presence: float = 0.0,
    ) -> None:
        self.repeat = np.float32(repeat if repeat > 0 else 1.0)
        self.frequency = np.float32(frequency)
        self.presence = np.float32(presence)
        self.active = window != 0 and (self.repeat != 1 or self.frequency != 0 or self.presence != 0)
        self._counts = np.zeros(vocab_size if self.active else 0, np.int32)
        self._recent: deque[int] = deque()
        self._window = window

    def accept(self, token: int) -> None:
        """Add a token to the history; ids outside the vocabulary (image placeholders) only take a place."""
        if not self.active:
            return
        self._count(token, 1)
        if self._window > 0:
            self._recent.append(token)
            if len(self._recent) > self._window:
                self._count(self._recent.popleft(), -1)

    def lowered(self) -> tuple[Ids, Floats]:
        """Return the seen tokens, ascending, and what their logits lose after the repeat penalty.

        The repeat penalty divides a logit by `repeat`, or multiplies it when negative; the others lower it by
        `frequency` times the token's count and once by `presence`.
        """
        seen = self._seen() if self.active else np.empty(0, np.int64)
        return seen, self.frequency * self._counts[seen].astype(np.float32) + self.presence

    def _seen(self) -> NDArray[np.int64]:
        if not 0 < self._window <= _SHORT:
            return np.flatnonzero(self._counts)
        ids = np.unique(np.fromiter(self._recent, np.int64, len(self._recent)))
        return ids[(ids >= 0) & (ids < self._counts.size)]

    def _count(self, token: int, change: int) -> None:
        if 0 <= token < self._counts.size:
            self._counts[token] += change


#: No tokens, and nothing that their logits lose.
_NOTHING: Final = np.empty(0, np.int64), np.empty(0, np.float32)

#: The largest exponent of e in float32, which limits the length of repetitions that count.
_LARGEST_LOG: Final = 88.7228391
_MAX_PENALTY: Final = 1e30


class Dry:
    """A penalty on each token that would continue a repetition (DRY: don't repeat yourself).

    A token that would make the last n tokens and itself appear a second time loses `multiplier * base ** (n -
    allowed_length)`, if n is at least `allowed_length`. Only the last `window` tokens (-1: all) count, and n
    is at most the number of tokens after the last breaker.
    """

    def __init__(
        self,
        piece: Callable[[int], bytes],
        *,
        multiplier: float,
        base: float,
        allowed_length: int,
        window: int,
        breakers: Sequence[str],
    ) -> None:
        self._piece = piece
        self._multiplier = multiplier
        self._base = base
        self._allowed = allowed_length
        self._window = window
        self._breakers = [breaker.encode() for breaker in breakers if breaker]
        self._overlap = max(map(len, self._breakers), default=1) - 1
        # A longer repetition has the same penalty.
        self._longest = allowed_length + (int(_LARGEST_LOG / math.log(base)) if base > 1 else 0)
        self._tokens = np.zeros(1024, np.int32)
        self._count = 0
        self._since_breaker = 0  # tokens
        self._tail = b""  # of the text, which may begin a breaker

    def accept(self, token: int) -> None:
        """Add a token to the history."""
        if self._count == self._tokens.size:
            self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
        self._tokens[self._count] = token
        self._count += 1
        text = self._tail + (self._piece(token) if token >= 0 else b"")
        broken = any(breaker in text for breaker in self._breakers)
        self._since_breaker = 0 if broken else self._since_breaker + 1
        self._tail = b"" if broken else text[max(len(text) - self._overlap, 0) :]

    def lowered(self, vocab_size: int) -> tuple[Ids, Floats]:
        """Return the tokens that would continue a repetition, ascending, and what their logits lose."""
        history = self._tokens[: self._count]
        if self._window >= 0:
            history = history[max(self._count - self._window, 0) :]
        most = min(self._since_breaker, self._longest)
        if len(history) <= self._allowed or most < self._allowed:
            return _NOTHING
        # Find earlier places of the last token, then of the last two, and so on.
        places = np.arange(len(history) - 1)
        lengths = np.zeros(len(history) - 1, np.int64)
        for length in range(most):
            places = places[places >= length]
            places = places[history[places - length] == history[-1 - length]]
            if not places.size:
                break
            lengths[places] = length + 1
        repeating = np.flatnonzero(lengths >= self._allowed)
        following = history[repeating + 1]
        known = (following >= 0) & (following < vocab_size)
        if not known.any():
            return _NOTHING
        longest = np.zeros(vocab_size, np.int64)
        np.maximum.at(longest, following[known], lengths[repeating[known]])
        tokens = np.unique(following[known]).astype(np.int64)
        penalties = self._multiplier * np.power(float(self._base), longest[tokens] - self._allowed)
        return tokens, np.minimum(penalties, _MAX_PENALTY).astype(np.float32)


#: Candidates from which version 1 estimates the decay of probabilities, as many as in llama.cpp.
_LOOKED_AT = 100


class Mirostat:
    """A cutoff of candidates that keeps the surprise of draws near `tau` bits; it learns at rate `eta`."""

    def __init__(self, version: int, tau: float, eta: float) -> None:
        self._version = version
        self._tau = tau
        self._eta = eta
        self._limit = 2 * tau  # the paper's mu

    def candidates(self, logits: NDArray[np.float32], ops: Backend) -> Ids:
        """Return the tokens that may be drawn, the likeliest first; `max(logits)` must be finite."""
        largest = float(logits.max())
        logarithm = math.log(ops.sum_of_exponentials(logits, largest))
        if self._version == 1:
            best = logits[ops.top_k(logits, min(_LOOKED_AT, logits.size))]
            count = self._by_exponent(best[best > -np.inf].astype(np.float64), logits.size)
            ids = ops.top_k(logits, count)
            return ids[logits[ids] > -np.inf]
        least = largest + logarithm - self._limit * math.log(2)
        ids = np.flatnonzero(logits >= np.float32(least))
        if not ids.size:
            return ops.top_k(logits, 1)
        return ids[np.argsort(-logits[ids], kind="stable")]

    def drawn(self, probability: float) -> None:
        """Learn from a draw that had this probability among the candidates."""
        self._limit -= self._eta * (-math.log2(probability) - self._tau)

    def _by_exponent(self, best: NDArray[np.float64], size: int) -> int:
        """Return the paper's k, by the exponent of Zipf's law estimated from the likeliest tokens."""
        if best.size < 2:
            return 1
        ranks = np.arange(1, best.size)
        spread = np.log((ranks + 1) / ranks)
        exponent = float(spread @ (best[:-1] - best[1:]) / (spread @ spread))
        excess = exponent - 1
        with np.errstate(all="ignore"):
            ratio = np.float64(excess * 2**self._limit) / (1 - np.float64(size) ** -excess)
            count = ratio ** (1 / np.float64(exponent))
        return min(max(int(count), 1), size) if np.isfinite(count) else size


@dataclass(frozen=True)
class Distribution:
    """The candidates of a draw, the likeliest first, and their probabilities, not normalised."""

    ids: sampling.Ids
    probabilities: sampling.Probabilities

    def log_probabilities(self, token: int, top: int) -> tuple[float, list[tuple[int, float]]]:
        """Return the log-probability of `token` (-inf: no candidate), and the `top` likeliest tokens."""
        shares = np.log(self.probabilities / self.probabilities.sum())
        chosen = shares[self.ids == token].max(initial=-np.inf)
        return float(chosen), [(int(self.ids[i]), float(shares[i])) for i in range(min(top, shares.size))]


class Sampler:
    """Draws tokens by a request's options, with its own stream of random numbers.

    Order: rules, bias, banned tokens, penalties, DRY, allowed tokens, top-n-sigma, top-k, typical-p,
    temperature, top-p, min-p, XTC, draw; Mirostat replaces top-k to XTC, except temperature. Temperature 0
    takes the largest logit (the lowest id in a tie) and draws no random number; otherwise every call of
    `sample` draws exactly one, and another one before it if XTC is on.
    """

    def __init__(
        self,
        options: Options,
        vocab_size: int,
        ops: Backend,
        tokenizer: Tokenizer | None = None,
        *,
        keeps_distribution: bool = False,
        rules: TokenRules | None = None,
    ) -> None:
        """`tokenizer` is for DRY and `min_tokens`; `distribution` is set only if `keeps_distribution`.

        Tokens that `rules` rule out are never drawn, whatever the options.

        Raises `OptionError` for a bias on, or a ban of, a token that does not exist.
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
        self._rules = rules
        self.distribution = Distribution(np.empty(0, np.int64), np.empty(0))  # of the last draw
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
            self._mirostat = Mirostat(options.mirostat, options.mirostat_tau, options.mirostat_eta)

    @cached_property
    def _random(self) -> Random:
        return Random.seeded(self._options.seed)

    def accept(self, token: int, *, generated: bool = False) -> None:
        """Add a token of the prompt or answer to the history for penalties."""
        self._penalties.accept(token)
        if self._dry is not None:
            self._dry.accept(token)
        if generated and self._until_end:
            self._until_end -= 1
        if generated and self._rules is not None:
            self._rules.accept(token)

    def sample(self, logits: Array, allowed: NDArray[np.generic] | None = None) -> int:
        """Return the next token's id; `logits` [vocab], an array of the backend, are not modified.

        Only `allowed` tokens can be drawn: bool [vocab], or a bit mask of 32-bit words (bit i of word w is
        token 32 w + i), as a grammar computes it. Raises `GenerationError` when logits are NaN or +inf, or no
        token is possible.
        """
        [token] = sample_all([(self, logits, allowed)])
        if isinstance(token, Exception):
            raise token
        return token

    def _prepared(self, logits: Array, allowed: NDArray[np.generic] | None) -> sampling.Draw | int:
        """Return the draw for a backend's `choose`, or the token if its options go beyond `choose`."""
        logits = self._checked(logits)
        if self._rules is not None:
            logits = self._ruled(logits, self._rules)
        words = None if allowed is None else _packed(allowed, self._vocab_size)
        options, changes = self._options, self._changes()
        draw = sampling.Draw(logits, temperature=0.0, allowed=words, changes=changes)
        if options.temperature <= 0:
            return draw
        if self._mirostat is not None or self._keeps_distribution:
            return self._draw(self._on_host(draw), masked=words is not None)
        return self._settings(logits)._replace(allowed=words, changes=changes)

    def _settings(self, logits: Array) -> sampling.Draw:
        """Return the next draw from `logits`, without changes and masks."""
        options, xtc_threshold = self._options, 1.0
        if options.xtc_probability and self._random.uniform() < options.xtc_probability:
            xtc_threshold = options.xtc_threshold
        return sampling.Draw(
            logits,
            self._random.uniform(),
            options.temperature,
            options.top_n_sigma,
            options.top_k,
            _unit(options.typical_p),
            _unit(options.top_p),
            _unit(options.min_p),
            dynatemp_range=options.dynatemp_range,
            dynatemp_exponent=options.dynatemp_exponent,
            xtc_threshold=xtc_threshold,
        )

    def _ruled(self, logits: Array, rules: TokenRules) -> Array:
        """Return a copy of `logits` [vocab] without what `rules` rule out."""
        limited = np.array(self._ops.numpy(logits), np.float32)
        if not np.isfinite(limited.max()):
            raise GenerationError(_complaint(limited, False))
        rules.limit(limited)
        return self._ops.array(limited)

    def _on_host(self, draw: sampling.Draw) -> Floats:
        """Return the logits of a draw after its changes, without tokens that are not allowed."""
        return np.ascontiguousarray(sampling.adjusted(draw._replace(logits=self._ops.numpy(draw.logits))))

    def _drawn(self, draw: sampling.Draw, token: int | None) -> int:
        """Return the token that a backend chose for `draw`. Raises `GenerationError` if there is none."""
        if token is None:
            raise GenerationError(_complaint(self._on_host(draw), draw.allowed is not None))
        if self._keeps_distribution:
            self.distribution = Distribution(np.array([token]), np.ones(1))
        return token

    def _checked(self, logits: Array) -> Array:
        """Return logits [vocab], contiguous. Raises `GenerationError` for another size or type."""
        kind = logits.dtype if isinstance(logits, np.ndarray) else np.dtype(np.float32)
        if tuple(logits.shape) != (self._vocab_size,) or kind != np.float32:
            raise GenerationError(
                f"the model gave {kind} logits of shape {list(logits.shape)}, "
                f"expected float32 [{self._vocab_size}]"
            )
        return np.ascontiguousarray(logits) if isinstance(logits, np.ndarray) else logits

    def _changes(self) -> sampling.Changes | None:
        """Return bias, bans and penalties as changes of single logits; None if there are none."""
        chosen = self._biased.size or self._banned.size or self._until_end
        if not (chosen or self._penalties.active or self._dry is not None):
            return None
        ended = self._ends if self._until_end else self._ends[:0]
        penalised, lowered_penalised = self._penalties.lowered()
        repeating, lowered_repeating = _NOTHING if self._dry is None else self._dry.lowered(self._vocab_size)
        parts = [part for part in (self._biased, self._banned, ended, repeating) if part.size]
        if not parts and not penalised.size:
            return None
        if not parts:
            added, repeat = np.zeros((2, penalised.size), np.float32)
            repeat += self._penalties.repeat
            return sampling.Changes(penalised.astype(np.int32), added, repeat, lowered_penalised)
        tokens = np.unique(np.concatenate([*parts, penalised]))
        added, repeat = np.zeros(tokens.size, np.float32), np.ones(tokens.size, np.float32)
        lowered = np.zeros(tokens.size, np.float32)
        added[np.searchsorted(tokens, self._biased)] = self._bias
        at = np.searchsorted(tokens, penalised)
        repeat[at], lowered[at] = self._penalties.repeat, lowered_penalised
        lowered[np.searchsorted(tokens, repeating)] += lowered_repeating
        for impossible in (self._banned, ended):
            lowered[np.searchsorted(tokens, impossible)] = np.inf
        return sampling.Changes(tokens.astype(np.int32), added, repeat, lowered)

    def _draw(self, logits: Floats, masked: bool) -> int:
        """Draw from `logits` with Mirostat, or so that the distribution is known."""
        if not logits.size or not np.isfinite(logits.max()):
            raise GenerationError(_complaint(logits, masked))
        if self._mirostat is None:
            row = self._settings(logits)
            ids, probabilities = sampling.candidates(row, self._ops.top_k)
            uniform = row.uniform
        else:
            if self._options.top_n_sigma > 0:
                logits = sampling.top_n_sigma(logits, self._options.top_n_sigma)
            tempered = sampling.temper(logits, self._options.temperature)
            ids = self._mirostat.candidates(tempered, self._ops)
            probabilities, uniform = sampling.softmax(tempered[ids]), self._random.uniform()
        if self._keeps_distribution:
            self.distribution = Distribution(ids, probabilities)
        place = sampling.draw(probabilities, uniform)
        if self._mirostat is not None:
            self._mirostat.drawn(float(probabilities[place] / probabilities.sum()))
        return int(ids[place])


def sample_all(
    rows: Sequence[tuple[Sampler, Array, NDArray[np.generic] | None]],
) -> list[int | Exception]:
    """Return `Sampler.sample` of each row (sampler, logits, allowed tokens), drawn in one call.

    The samplers must differ and share a backend. A row that fails has its error in place of a token.
    """
    found: list[int | Exception] = [0] * len(rows)
    draws: list[tuple[int, sampling.Draw]] = []
    for place, (sampler, logits, allowed) in enumerate(rows):
        try:
            prepared = sampler._prepared(logits, allowed)
        except Exception as error:
            found[place] = error
            continue
        if isinstance(prepared, int):
            found[place] = prepared
        else:
            draws.append((place, prepared))
    if draws:
        chosen = rows[0][0]._ops.choose([draw for _, draw in draws])
        for (place, draw), token in zip(draws, chosen, strict=True):
            try:
                found[place] = rows[place][0]._drawn(draw, token)
            except GenerationError as error:
                found[place] = error
    return found


def _unit(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def _packed(allowed: NDArray[Any], vocab_size: int) -> NDArray[np.int32]:
    if allowed.dtype == np.bool_ and allowed.shape == (vocab_size,):
        octets = np.zeros((vocab_size + 31) // 32 * 4, np.uint8)
        octets[: (vocab_size + 7) // 8] = np.packbits(allowed, bitorder="little")
        return octets.view("<i4").astype(np.int32, copy=False)
    if allowed.dtype in (np.int32, np.uint32) and allowed.size * 32 >= vocab_size:
        return np.ascontiguousarray(allowed).view(np.int32)
    raise ValueError(
        f"allowed tokens: {allowed.dtype} {list(allowed.shape)} for a vocabulary of {vocab_size}"
    )


def _complaint(logits: Floats, masked: bool) -> str:
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
