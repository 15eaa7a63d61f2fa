"""Speculative decoding: draft tokens, so that one step can yield several.

A step takes hardly longer with a few rows than with one, because most of its time goes into reading the
weights. So a sequence may add drafted tokens to its newest one: if they are right, the logits after
each of them are there. Tokens are still sampled one after another, by the same sampler with the same
random numbers; a draft only decides whether the next row is of use. So the answer is the same, token
for token, whatever is drafted. What the format of an answer forces is drafted, too, and always comes
true.

Whether drafting pays is measured: what one more row adds to a step, and how many draft tokens are
accepted.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from puna.batch import KeptStates
from puna.engine.drafting.draft_model import DraftModel
from puna.engine.drafting.payoff import Candidate, Cost, StepEstimate
from puna.engine.drafting.prediction_heads import PredictionHeads
from puna.engine.drafts import (
    FORCED,
    GENERATED,
    MATCH_LENGTHS,
    AcceptanceRates,
    Draft,
    Drafting,
    PromptLookup,
)
from puna.engine.sequence import Generation, Sequence
from puna.errors import RequestError
from puna.kvcache.cache import Cache
from puna.kvcache.types import KVTypes
from puna.model.decoder import Decoder
from puna.model.load import LoadedModel
from puna.options import drafts_itself

if TYPE_CHECKING:
    from puna.engine.batching import BatchSlice, StepLoad


def drafter_for(
    loaded: LoadedModel,
    cache: Cache,
    *,
    context: int,
    capacity: int,
    parallel: int,
    remembered: int,
    batch_size: int,
    cache_types: KVTypes,
    speculate: str | None,
) -> tuple[DraftModel | PredictionHeads | None, KeptStates | None]:
    """The drafter, and the hidden states that a pass is to keep for it.

    `cache` is the model's own, in which its heads remember too; a draft model has one of its own, for which
    the other sizes are.
    """
    if loaded.draft is not None:
        return DraftModel(
            loaded.draft,
            loaded,
            context=context,
            capacity=capacity,
            parallel=parallel,
            remembered=remembered,
            batch=batch_size,
            cache_types=cache_types,
        ), None
    if (
        not drafts_itself(speculate)
        or not isinstance(loaded.model, Decoder)
        or not loaded.model.prediction_heads
    ):
        return None, None
    most = batch_size + parallel * (1 + MAX_DRAFT_TOKENS)
    kept = KeptStates(loaded.ops, most, loaded.model.options.hidden_size)
    vocab_size = loaded.tokenizer.vocab_size
    return PredictionHeads(loaded.model, cache, kept, context=context, vocab_size=vocab_size), kept


#: What is missing where a request asks for drafts in vain.
_MISSING = {
    "draft": 'this model was loaded without a draft model; name one with the option "draft"',
    "mtp": "this model was loaded without prediction heads; use a file that has them",
}
#: Longer drafts are hardly ever accepted whole.
MAX_DRAFT_TOKENS = 8
#: Assumed acceptance rate before anything was drafted.
_FIRST_ACCEPTANCE = 0.5
#: Weight of one outcome in the acceptance rate of its sequence, and in that of later sequences.
_WEIGHT, _GENERAL_WEIGHT = 0.2, 0.02
#: How much longer a step may take because of drafts if some of its sequences draft nothing.
_BYSTANDERS = 0.05


class Drafter(Protocol):
    """What generates drafts: a draft model, or the model's own prediction heads."""

    context: int  # inputs of a sequence after which it can draft

    @property
    def mode(self) -> str:
        """What requests call it in `speculate`."""

    @property
    def provided_bytes(self) -> int:
        """Memory it takes beside the model and its cache."""

    def pass_cost(self, step_s: float) -> float:
        """The cost of drafting one more token, as a fraction of a step of the model that takes `step_s`."""

    def catch_up_cost(self, sequence: Sequence, step_s: float) -> float:
        """The cost of what must come before the first draft of `sequence`, as such a fraction."""

    def observe(self, slices: Items[BatchSlice], rows: int) -> None:
        """The model has evaluated `slices`, `rows` rows in all."""

    def leave(self, sequence: Sequence) -> None:
        """A sequence is about to end."""

    def draft(self, wanted: Items[tuple[Sequence, int]]) -> list[list[int]]:
        """Up to the given number of tokens after each sequence."""

    def release_finished(self) -> None:
        """Forget sequences that no longer run."""

    def close(self) -> None:
        """Give all memory back."""


@dataclass
class _Offer:
    """What a sequence could draft: up to `most` tokens, which may have yet to be generated."""

    batch_slice: BatchSlice
    drafting: Drafting
    source: int
    most: int
    tokens: list[int]

    @property
    def candidate(self) -> Candidate:
        return Candidate(self.drafting.acceptance[self.source], self.most)


class Speculation:
    """Chooses what sequences draft, by what it has measured.

    `default` is the mode of requests that name none; without it they use the drafter, if there is one.
    """

    def __init__(
        self, cache: Cache, context: int, *, drafter: Drafter | None = None, default: str | None = None
    ) -> None:
        self._cache = cache
        self._context = context
        self._drafter = drafter
        self._generated_by = drafter.mode if drafter is not None else ""
        self._default = default or self._generated_by or "off"
        guesses = dict.fromkeys((GENERATED, *MATCH_LENGTHS), _FIRST_ACCEPTANCE)
        self._acceptance: AcceptanceRates = {FORCED: 1.0, **guesses}  # of later sequences
        self._costs: defaultdict[int, Cost] = defaultdict(Cost)  # by the number of sequences

    def enable(self, sequences: Iterable[Generation]) -> None:
        """Enable drafting for new sequences whose request wants it, or forces tokens, if the cache allows it.

        Raises `RequestError` when a request asks for what was not loaded.
        """
        for sequence in sequences:
            wanted = sequence.request.options.speculate
            if wanted in _MISSING and wanted != self._generated_by:
                raise RequestError(f'speculate is "{wanted}", and {_MISSING[wanted]}, or use "prompt"')
            mode = wanted or self._default
            if mode not in ("prompt", self._generated_by) or (mode != "prompt" and sequence.images):
                mode = "format"  # what generates drafts reads tokens alone
            if self._cache.max_drafts and (mode != "format" or sequence.constraint is not None):
                sequence.drafting = Drafting(mode, dict(self._acceptance))

    def propose(self, slices: Items[BatchSlice], room: Callable[[int], int]) -> None:
        """Add drafts to the slices of a step, as far as they pay.

        `room(wanted)` is how many of `wanted` rows the batch can have.
        """
        if self._drafter is not None:
            self._drafter.release_finished()
        if not all(batch_slice.sequence.decoding for batch_slice in slices):
            return  # prompts fill a step with rows anyway
        able = [
            (batch_slice, drafting)
            for batch_slice in slices
            if (drafting := batch_slice.sequence.drafting) is not None
        ]
        cost = self._costs[len(slices)]
        if not able or not cost.known:
            return
        longest = 1 + _BYSTANDERS if len(able) < len(slices) else math.inf
        offers = [
            offer for batch_slice, drafting in able if (offer := self._offer(batch_slice, drafting)).most > 0
        ]
        chosen = self._choose(offers, len(slices), cost, longest)
        left = room(len(slices) + sum(count for _, count in chosen)) - len(slices)
        for offer, count in chosen:
            offer.most = max(min(count, left), 0)
            left -= offer.most
        self._draft([offer for offer, _ in chosen if offer.source == GENERATED and offer.most])
        for offer, _ in chosen:
            offer.batch_slice.draft = Draft(offer.source, offer.tokens[: offer.most])
            offer.drafting.drafted += len(offer.batch_slice.draft.tokens)

    def observe(self, slices: Items[BatchSlice]) -> None:
        """The slices of a step were evaluated."""
        if self._drafter is not None:
            self._drafter.observe(slices, sum(batch_slice.rows for batch_slice in slices))

    def leave(self, sequence: Sequence) -> None:
        """A sequence is about to end."""
        if self._drafter is not None:
            self._drafter.leave(sequence)

    def measured(self, load: StepLoad, seconds: float) -> None:
        """The pass of a step took `seconds`, without sampling, whose time depends on tokens alone."""
        if not load.prompt:
            self._costs[load.decoding].measured(load.drafted, seconds)

    def record_outcome(self, sequence: Sequence, draft: Draft, accepted: int, *, ended: bool) -> None:
        """The first `accepted` tokens of a draft were right; then one was not, or the sequence ended."""
        assert sequence.drafting is not None
        outcomes = [1.0] * accepted + [0.0] * (accepted < len(draft.tokens) and not ended)
        for outcome in outcomes:
            for rates, weight in (
                (sequence.drafting.acceptance, _WEIGHT),
                (self._acceptance, _GENERAL_WEIGHT),
            ):
                rates[draft.source] += weight * (outcome - rates[draft.source])

    def close(self) -> None:
        if self._drafter is not None:
            self._drafter.close()

    def _offer(self, batch_slice: BatchSlice, drafting: Drafting) -> _Offer:
        """What could be drafted, limited to what could be used."""
        sequence = batch_slice.sequence
        assert isinstance(sequence, Generation)
        left = min(sequence.context, self._context) - len(sequence.inputs)
        most = min(MAX_DRAFT_TOKENS, self._cache.max_drafts, left)
        most = min(most, sequence.limit - sequence.generated - 1)
        if sequence.constraint is not None and sequence.constraint.slow:
            most = 0
        elif sequence.constraint is not None and (forced := sequence.constraint.forced()):
            return _Offer(batch_slice, drafting, FORCED, min(len(forced), most), forced)
        if drafting.mode == "format" or most <= 0:
            return _Offer(batch_slice, drafting, FORCED, 0, [])
        if drafting.generated:
            assert self._drafter is not None
            most = min(most, self._drafter.context - len(sequence.inputs))
            return _Offer(batch_slice, drafting, GENERATED, most, [])
        if drafting.lookup is None:
            drafting.lookup = PromptLookup(sequence.keys)
        source, tokens = drafting.lookup.look_up(max(most, 0))
        return _Offer(batch_slice, drafting, source, len(tokens), tokens)

    def _choose(
        self, offers: list[_Offer], streams: int, cost: Cost, longest: float
    ) -> list[tuple[_Offer, int]]:
        """Which offers to use, and how many tokens of each."""
        estimate = StepEstimate(streams)
        pass_cost = self._drafter.pass_cost(cost.step_s) if self._drafter is not None else 0.0
        chosen: list[tuple[_Offer, int]] = []
        for price, group in (
            (0.0, [offer for offer in offers if offer.source != GENERATED]),
            (pass_cost, [offer for offer in offers if offer.source == GENERATED]),
        ):
            candidates = [offer.candidate for offer in group]
            counts = estimate.add(candidates, cost.row, pass_cost=price, longest=longest)
            chosen += [(offer, count) for offer, count in zip(group, counts, strict=True) if count]
        if offers and not chosen:
            offer = min(offers, key=lambda offer: offer.drafting.drafted)
            price = cost.row
            if offer.source == GENERATED:
                assert self._drafter is not None
                price += pass_cost + self._drafter.catch_up_cost(offer.batch_slice.sequence, cost.step_s)
            if cost.may_probe(price):
                return [(offer, 1)]
        return chosen

    def _draft(self, offers: list[_Offer]) -> None:
        if not offers:
            return
        assert self._drafter is not None
        drafts = self._drafter.draft([(offer.batch_slice.sequence, offer.most) for offer in offers])
        for offer, tokens in zip(offers, drafts, strict=True):
            offer.tokens = tokens
