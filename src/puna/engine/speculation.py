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
from dataclasses import dataclass
from typing import TYPE_CHECKING

from puna.engine.guesses import DRAFT, Chances, Guess, Guesser
from puna.engine.ngrams import LENGTHS, Ngrams
from puna.engine.payoff import Candidate, Cost, Prospect
from puna.engine.sequence import Generation, Sequence
from puna.errors import RequestError

if TYPE_CHECKING:
    from puna.engine.batching import Share
    from puna.engine.drafting import Drafter
    from puna.kvcache.cache import Cache

#: More guesses in a row hardly ever all come true.
MOST_GUESSES = 8
#: How likely a guess is before any was made.
_FIRST_CHANCE = 0.5
#: How much an outcome changes what is believed of a sequence, and of those still to come.
_WEIGHT, _GENERAL_WEIGHT = 0.2, 0.02
#: By how much of their step's time streams that want no guesses may be held up by those of others.
_BYSTANDERS = 0.05


@dataclass
class _Offer:
    """What a stream could guess: up to `most` tokens, which a draft model has yet to be asked for."""

    share: Share
    guesser: Guesser
    kind: int
    most: int
    tokens: list[int]

    @property
    def candidate(self) -> Candidate:
        return Candidate(self.guesser.chances[self.kind], self.most)


class Speculation:
    """Chooses what streams guess, by what it has measured.

    `default` is for requests that do not say; without one they guess with the drafter, if there is any.
    """

    def __init__(
        self, cache: Cache, context: int, *, drafter: Drafter | None = None, default: str | None = None
    ) -> None:
        self._cache = cache
        self._context = context
        self._drafter = drafter
        self._default = default or ("draft" if drafter is not None else "off")
        self._chances: Chances = dict.fromkeys((DRAFT, *LENGTHS), _FIRST_CHANCE)  # of sequences still to come
        self._costs: defaultdict[int, Cost] = defaultdict(Cost)  # by the number of streams

    def equip(self, sequences: Iterable[Generation]) -> None:
        """Let new sequences guess, if their request wants that and the cache allows it.

        Raises `RequestError` when a request asks for a draft model that was not loaded.
        """
        for sequence in sequences:
            wanted = sequence.request.options.speculate
            if wanted == "draft" and self._drafter is None:
                raise RequestError(
                    'speculate is "draft", and this model was loaded without a draft model; name one with '
                    'the option "draft", or use "prompt"'
                )
            mode = wanted or self._default
            drafts = mode == "draft" and self._drafter is not None
            if self._cache.takes_back and (drafts or mode == "prompt"):
                sequence.guesser = Guesser(drafts, dict(self._chances))

    def guess(self, shares: Items[Share], room: Callable[[int], int]) -> None:
        """Add guesses to the shares of a step's streams, as far as they pay.

        `room` says how many rows there can be of those wanted.
        """
        if self._drafter is not None:
            self._drafter.sweep()
        if not all(share.sequence.decoding for share in shares):
            return  # beside prompts there are rows enough to fill a step
        guessing = [(share, guesser) for share in shares if (guesser := share.sequence.guesser) is not None]
        cost = self._costs[len(shares)]
        if not guessing or not cost.known:
            return
        longest = 1 + _BYSTANDERS if len(guessing) < len(shares) else math.inf
        offers = [offer for share, guesser in guessing if (offer := self._offer(share, guesser)).most > 0]
        chosen = self._choose(offers, len(shares), cost, longest)
        left = room(len(shares) + sum(count for _, count in chosen)) - len(shares)
        for offer, count in chosen:
            offer.most = max(min(count, left), 0)
            left -= offer.most
        self._draft([offer for offer, _ in chosen if offer.kind == DRAFT and offer.most])
        for offer, _ in chosen:
            offer.share.guess = Guess(offer.kind, offer.tokens[: offer.most])
            offer.guesser.drafted += len(offer.share.guess.tokens)

    def measured(self, shares: Items[Share], seconds: float) -> None:
        """The pass of a step took so long. What follows it takes its time by tokens, guessed or not."""
        if all(share.sequence.decoding for share in shares):
            self._costs[len(shares)].measured(sum(len(share.guess.tokens) for share in shares), seconds)

    def judge(self, sequence: Sequence, guess: Guess, accepted: int, *, ended: bool) -> None:
        """The first `accepted` tokens of a guess came true, and then one did not, or the sequence ended."""
        assert sequence.guesser is not None
        outcomes = [1.0] * accepted + [0.0] * (accepted < len(guess.tokens) and not ended)
        for outcome in outcomes:
            for chances, weight in ((sequence.guesser.chances, _WEIGHT), (self._chances, _GENERAL_WEIGHT)):
                chances[guess.kind] += weight * (outcome - chances[guess.kind])

    def close(self) -> None:
        if self._drafter is not None:
            self._drafter.close()

    def _offer(self, share: Share, guesser: Guesser) -> _Offer:
        """What could be guessed, and no more than can be of use."""
        sequence = share.sequence
        assert isinstance(sequence, Generation)
        most = min(MOST_GUESSES, self._context - len(sequence.inputs))
        if sequence.limit is not None:
            most = min(most, sequence.limit - sequence.generated - 1)
        if guesser.drafts:
            assert self._drafter is not None
            most = min(most, self._drafter.context - len(sequence.inputs))
            return _Offer(share, guesser, DRAFT, most, [])
        if guesser.ngrams is None:
            guesser.ngrams = Ngrams(sequence.keys)
        kind, tokens = guesser.ngrams.look_up(max(most, 0))
        return _Offer(share, guesser, kind, len(tokens), tokens)

    def _choose(
        self, offers: list[_Offer], streams: int, cost: Cost, longest: float
    ) -> list[tuple[_Offer, int]]:
        """Which offers to take up, and how far."""
        prospect = Prospect(streams)
        deeper = self._drafter.deeper(cost.step_s) if self._drafter is not None else 0.0
        chosen: list[tuple[_Offer, int]] = []
        for price, kind in (
            (0.0, [offer for offer in offers if offer.kind != DRAFT]),
            (deeper, [offer for offer in offers if offer.kind == DRAFT]),
        ):
            candidates = [offer.candidate for offer in kind]
            counts = prospect.add(candidates, cost.row, deeper=price, longest=longest)
            chosen += [(offer, count) for offer, count in zip(kind, counts, strict=True) if count]
        if offers and not chosen:
            offer = min(offers, key=lambda offer: offer.guesser.drafted)
            price = cost.row
            if offer.kind == DRAFT:
                assert self._drafter is not None
                price += deeper + self._drafter.catching_up(offer.share.sequence, cost.step_s)
            if cost.spend(price):
                return [(offer, 1)]
        return chosen

    def _draft(self, offers: list[_Offer]) -> None:
        if not offers:
            return
        assert self._drafter is not None
        drafts = self._drafter.draft([(offer.share.sequence, offer.most) for offer in offers])
        for offer, tokens in zip(offers, drafts, strict=True):
            offer.tokens = tokens
