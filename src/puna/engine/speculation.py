"""Guessing tokens, so that one step can yield several.

A step costs hardly more with a few rows than with one, for what takes time is reading the weights. So a
stream may bring guesses along with its newest token: if they come true, the logits after each of them are
there. The tokens are sampled from these as ever, one after another, by the same sampler with the same random
numbers; a guess only decides whether the next row is of use. So an answer is the same token for token,
whatever is guessed.

Whether it pays is measured: what a row more adds to a step, and how often a sequence's guesses come true.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from typing import TYPE_CHECKING

from puna.engine.guesses import Chances, Guess, Guesser
from puna.engine.ngrams import LENGTHS, Ngrams
from puna.engine.payoff import Candidate, Cost, Prospect
from puna.engine.sequence import Generation, Sequence

if TYPE_CHECKING:
    from puna.engine.batching import Share
    from puna.kvcache.cache import Cache

#: More guesses in a row hardly ever all come true.
MOST_GUESSES = 8
#: How likely a guess is before any was made.
_FIRST_CHANCE = 0.5
#: How much an outcome changes what is believed of a sequence, and of those still to come.
_WEIGHT, _GENERAL_WEIGHT = 0.2, 0.02
#: By how much of their step's time streams that want no guesses may be held up by those of others.
_BYSTANDERS = 0.05


class Speculation:
    """Chooses what streams guess, by what it has measured. `default` is for requests that do not say."""

    def __init__(self, cache: Cache, context: int, default: str = "off") -> None:
        self._cache = cache
        self._context = context
        self._default = default
        self._chances: Chances = dict.fromkeys(LENGTHS, _FIRST_CHANCE)  # of sequences still to come
        self._costs: defaultdict[int, Cost] = defaultdict(Cost)  # by the number of streams

    def equip(self, sequences: Iterable[Generation]) -> None:
        """Let new sequences guess, if their request wants that and the cache allows it."""
        for sequence in sequences:
            mode = sequence.request.options.speculate or self._default
            if mode != "off" and self._cache.takes_back:
                sequence.guesser = Guesser(dict(self._chances))

    def guess(self, shares: Items[Share], room: Callable[[int], int]) -> None:
        """Add guesses to the shares of a step's streams, as far as they pay.

        `room` says how many rows there can be of those wanted.
        """
        guessing = [share for share in shares if share.sequence.guesser is not None]
        if not guessing or not all(share.sequence.decoding for share in shares):
            return  # beside prompts there are rows enough to fill a step
        cost = self._costs[len(shares)]
        if not cost.known:
            return
        longest = 1 + _BYSTANDERS if len(guessing) < len(shares) else math.inf
        for share in guessing:
            share.guess = self._look_up(share.sequence)
        guessing = [share for share in guessing if share.guess.tokens]
        candidates = [Candidate(_chance(share), len(share.guess.tokens)) for share in guessing]
        counts = Prospect(len(shares)).add(candidates, cost.row, longest=longest)
        if guessing and not any(counts) and cost.spend(cost.row):
            counts[min(range(len(counts)), key=lambda i: _drafted(guessing[i]))] = 1
        left = room(len(shares) + sum(counts)) - len(shares)
        for share, count in zip(guessing, counts, strict=True):
            del share.guess.tokens[max(min(count, left), 0) :]
            left -= len(share.guess.tokens)
            assert share.sequence.guesser is not None
            share.sequence.guesser.drafted += len(share.guess.tokens)

    def measured(self, shares: Items[Share], seconds: float) -> None:
        """The pass of a step took so long. What follows it takes its time by tokens, guessed or not."""
        if all(share.sequence.decoding for share in shares):
            self._costs[len(shares)].measured(sum(len(share.guess.tokens) for share in shares), seconds)

    def judge(self, sequence: Sequence, guess: Guess, accepted: int, *, ended: bool) -> None:
        """The first `accepted` tokens of a guess came true, and then one did not, or the sequence ended."""
        guesser = sequence.guesser
        assert guesser is not None
        outcomes = [1.0] * accepted + [0.0] * (accepted < len(guess.tokens) and not ended)
        for outcome in outcomes:
            for chances, weight in ((guesser.chances, _WEIGHT), (self._chances, _GENERAL_WEIGHT)):
                chances[guess.kind] += weight * (outcome - chances[guess.kind])

    def _look_up(self, sequence: Sequence) -> Guess:
        """What could be guessed, and no more than can be of use."""
        guesser = sequence.guesser
        assert guesser is not None
        assert isinstance(sequence, Generation)
        most = min(MOST_GUESSES, self._context - len(sequence.inputs))
        if sequence.limit is not None:
            most = min(most, sequence.limit - sequence.generated - 1)
        if most < 1:
            return Guess()
        if guesser.ngrams is None:
            guesser.ngrams = Ngrams(sequence.keys)
        return Guess(*guesser.ngrams.look_up(most))


def _chance(share: Share) -> float:
    assert share.sequence.guesser is not None
    return share.sequence.guesser.chances[share.guess.kind]


def _drafted(share: Share) -> int:
    assert share.sequence.guesser is not None
    return share.sequence.guesser.drafted
