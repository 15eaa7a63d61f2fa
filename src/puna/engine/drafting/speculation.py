"""Speculative decoding: draft tokens, so that one step can yield several.

A step with a few rows takes hardly longer than with one, because most of its time goes into reading the
weights. So a sequence may add draft tokens to its newest one; the step then yields the logits after each of
them, and those after correct drafts are used. Tokens are still sampled one after another, by the same sampler
with the same random numbers: a draft only decides whether the next row is of use, and the answer is the same,
token for token, whatever is drafted. Tokens that the format of an answer forces are drafted too, and always
accepted.

Whether drafting pays is measured: the time that each number of rows adds to a step, and the share of draft
tokens that are accepted. Where expectations are wrong, `Allowance` limits the time that drafts lose.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from puna.batch import KeptStates
from puna.engine.batching import MAX_SCORED, BatchSlice, Draft, StepLoad
from puna.engine.drafting.assistant import Assistant, AssistantModel
from puna.engine.drafting.draft_model import DraftModel
from puna.engine.drafting.payoff import Allowance, Candidate, Cost, StepEstimate
from puna.engine.drafting.prediction_heads import HasHeads, PredictionHeads, SeparateHead
from puna.engine.prefix_tree import Key
from puna.engine.room import EngineSizes
from puna.engine.scheduler import Pace
from puna.engine.sequence import Drafting, Generation, Sequence
from puna.errors import RequestError
from puna.kvcache.cache import Cache
from puna.model.decoder import Decoder
from puna.model.load import LoadedModel
from puna.options import drafts_itself

#: Source of drafts that a `Drafter` generates; a positive source is the length of a prompt lookup's match.
GENERATED: Final = 0
#: Source of drafts that the format of an answer forces, or that close its thinking.
FORCED: Final = -1
#: Numbers of newest tokens to match, longest first: the longer the match, the likelier its continuation.
MATCH_LENGTHS: Final = (4, 3, 2)
#: Longer drafts are hardly ever accepted whole.
MAX_DRAFT_TOKENS: Final = 8
#: Assumed acceptance rate before anything was drafted.
_FIRST_ACCEPTANCE: Final = 0.5
#: Weight of one outcome in the acceptance rate of its sequence, and in the initial rate of later ones.
_WEIGHT, _GENERAL_WEIGHT = 0.2, 0.05
#: How much longer drafts may make a step in which other sequences draft nothing.
_BYSTANDERS: Final = 0.05
#: Why a request cannot have the drafts it wants, by their mode.
_MISSING: Final = {
    "draft": 'this model was loaded without a draft model; name one with the option "draft"',
    "mtp": "this model was loaded without prediction heads; use a file that has them",
}


class PromptLookup:
    """An n-gram index of a growing list of inputs, at a constant cost per input.

    `keys` is the caller's list, which may only grow.
    """

    def __init__(self, keys: list[Key]) -> None:
        self._keys = keys
        self._known = 0  # inputs indexed so far
        # Where each n-gram last ended, by its hash. A collision only costs a rejected draft.
        self._ends: dict[int, int] = {}

    def look_up(self, most: int) -> tuple[int, list[int]]:
        """Return the length of the match and up to `most` tokens that followed it; (0, []) without a match.

        A continuation that reaches the end of the list is assumed to repeat.
        """
        keys = self._keys
        end = len(keys)
        # The newest n-gram is not indexed, since it would only find itself.
        for place in range(max(self._known, MATCH_LENGTHS[-1]), end):
            for length in MATCH_LENGTHS:
                if length <= place:
                    self._ends[hash(tuple(keys[place - length : place]))] = place
        self._known = max(self._known, end)
        for length in MATCH_LENGTHS:
            found = self._ends.get(hash(tuple(keys[end - length : end]))) if length <= end else None
            if found is not None:
                return length, self._continuation(found, most)
        return 0, []

    def _continuation(self, begin: int, most: int) -> list[int]:
        keys, period = self._keys, len(self._keys) - begin
        drafts: list[int] = []
        for step in range(most):
            key = keys[begin + step % period]
            if not isinstance(key, int):  # a part of an image
                break
            drafts.append(key)
        return drafts


class Drafter(Protocol):
    """A generator of drafts: a draft model, an assistant, or prediction heads."""

    context: int  # inputs after which a sequence cannot be drafted for

    @property
    def mode(self) -> str:
        """Its name in the option `speculate`."""

    @property
    def provided_bytes(self) -> int:
        """Memory it takes beside the model and its cache."""

    def pass_cost(self, step_s: float) -> float:
        """Return the cost of drafting one more token, as a fraction of a model's step of `step_s`."""

    def catch_up_cost(self, sequence: Sequence, step_s: float) -> float:
        """Return the cost of all that precedes the first draft of `sequence`, as such a fraction."""

    def observe(self, slices: Items[BatchSlice], rows: int) -> None:
        """Note that the model has evaluated `slices`, `rows` rows in all."""

    def leave(self, sequence: Sequence) -> None:
        """Note that a sequence is about to end."""

    def draft(self, wanted: Items[tuple[Sequence, int]]) -> list[list[int]]:
        """Return up to the given number of tokens after each sequence."""

    def release_finished(self) -> None:
        """Forget sequences that no longer run."""

    def close(self) -> None:
        """Free all memory."""


def drafter_for(
    loaded: LoadedModel, cache: Cache, sizes: EngineSizes, speculate: str | None
) -> tuple[DraftModel | Assistant | PredictionHeads | None, KeptStates | None]:
    """Return the drafter, and the hidden states that a pass must keep for it.

    Prediction heads and assistants, which are attached to the model, share its `cache`; a draft model builds
    its own, of `sizes`.
    """
    most = sizes.batch_size + sizes.parallel * (1 + MAX_DRAFT_TOKENS)
    vocab_size = loaded.tokenizer.vocab_size
    if loaded.draft is not None:
        model = loaded.draft.model
        if isinstance(model, AssistantModel):
            kept = KeptStates(loaded.ops, most, model.state_size, only_wanted=True)
            return Assistant(loaded.draft, loaded, cache, kept, context=sizes.context), kept
        if isinstance(model, SeparateHead):
            assert isinstance(loaded.model, Decoder)
            kept = KeptStates(
                loaded.ops, most, model.state_size, inputs_of=model.target_layers, fuse=model.fuse
            )
            return PredictionHeads(
                model, loaded.model.options, cache, kept, context=sizes.context, vocab_size=vocab_size,
                mode="draft", tokens=model.tokens,
            ), kept  # fmt: skip
        return DraftModel(loaded.draft, loaded, sizes), None
    if (
        not drafts_itself(speculate)
        or not isinstance(loaded.model, HasHeads)
        or not loaded.model.prediction_heads
    ):
        return None, None
    options = loaded.model.options
    kept = KeptStates(loaded.ops, most, options.hidden_size)
    return PredictionHeads(
        loaded.model, options, cache, kept, context=sizes.context, vocab_size=vocab_size
    ), kept


@dataclass
class _Offer:
    """A draft of up to `most` tokens that a sequence could have; generated ones are filled in later."""

    batch_slice: BatchSlice
    drafting: Drafting
    source: int
    most: int
    tokens: list[int]

    @property
    def candidate(self) -> Candidate:
        return Candidate(self.drafting.acceptance[self.source], self.most)


class Speculation:
    """Chooses the drafts of each step by measured costs and acceptance rates.

    `default` is the mode of requests without one of their own; by default they use the drafter, if any.
    """

    def __init__(
        self, cache: Cache, context: int, *, drafter: Drafter | None = None, default: str | None = None
    ) -> None:
        self._cache = cache
        self._context = context
        self._drafter = drafter
        self._generated_by = drafter.mode if drafter is not None else ""
        self._default = default or self._generated_by or "off"
        first = dict.fromkeys((GENERATED, *MATCH_LENGTHS), _FIRST_ACCEPTANCE)
        self._acceptance: dict[int, float] = {FORCED: 1.0, **first}  # that later sequences begin with
        self._costs: defaultdict[int, Cost] = defaultdict(Cost)  # by the number of sequences
        self._allowance = Allowance()
        self._streams = 1  # sequences in the newest step that could draft
        # With the shift at which each index began: a shift changes the keys it was made of.
        self._lookups: WeakKeyDictionary[Sequence, tuple[int, PromptLookup]] = WeakKeyDictionary()

    def enable(self, sequences: Iterable[Generation]) -> None:
        """Enable drafting for new sequences whose request wants it, or forces tokens, if the cache allows it.

        Raises `RequestError` when a request wants a drafter that was not loaded.
        """
        for sequence in sequences:
            wanted = sequence.request.options.speculate
            if wanted in _MISSING and wanted != self._generated_by:
                raise RequestError(f'speculate is "{wanted}", and {_MISSING[wanted]}, or use "prompt"')
            mode = wanted or self._default
            if mode not in ("prompt", self._generated_by) or (mode != "prompt" and sequence.images):
                mode = "format"  # drafters cannot read images
            forces = sequence.constraint is not None or sequence.thinking.is_limited
            if self._cache.max_drafts and (mode != "format" or forces):
                sequence.drafting = Drafting(mode, dict(self._acceptance))

    def propose(self, slices: Items[BatchSlice], room: Callable[[int], int]) -> None:
        """Add drafts to the slices of a step where they pay.

        `room(wanted)` returns how many of `wanted` rows the batch can have.
        """
        if self._drafter is not None:
            self._drafter.release_finished()
        if not all(batch_slice.decoding for batch_slice in slices):
            return  # a step with prompts has enough rows
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
        if not offers:
            return
        chosen, price = self._choose(offers, len(slices), cost, longest)
        wanted = sum(count for _, count in chosen)
        left = room(len(slices) + wanted) - len(slices)
        for offer, count in chosen:
            offer.most = max(min(count, left), 0)
            left -= offer.most
        if missing := wanted - sum(offer.most for offer, _ in chosen):
            self._allowance.add(price * missing / wanted)
        self._draft([offer for offer, _ in chosen if offer.source == GENERATED and offer.most])
        for offer, _ in chosen:
            offer.batch_slice.draft = Draft(offer.source, offer.tokens[: offer.most])
            offer.drafting.drafted += len(offer.batch_slice.draft.tokens)

    def repeat(self, slices: Items[BatchSlice], pace: Pace, room: Callable[[int], int]) -> bool:
        """Draft the known next tokens of answers begun elsewhere; return whether there are any.

        They are certainly right, so they are read like a prompt: as many as `pace` allows, or at least half
        of that beside prompts. `room` is as in `propose`.
        """
        wanted = [
            (batch_slice, tokens) for batch_slice in slices if (tokens := self._known(batch_slice.sequence))
        ]
        if not wanted:
            return False
        load = StepLoad.of(slices)
        budget = pace.budget(load.decoding - len(wanted), len(wanted))
        rows, most = load.decoding + load.prompt, sum(len(tokens) for _, tokens in wanted)
        left = min(max(budget - load.prompt, budget // 2), most)
        left = room(rows + left) - rows
        for count, (batch_slice, tokens) in enumerate(sorted(wanted, key=lambda each: len(each[1]))):
            share = min(len(tokens), max(left, 0) // (len(wanted) - count))
            batch_slice.draft = Draft(tokens=tokens[:share], known=True)
            left -= share
        return True

    def observe(self, slices: Items[BatchSlice]) -> None:
        """Note that the slices of a step were evaluated."""
        if self._drafter is not None:
            self._drafter.observe(slices, sum(batch_slice.rows for batch_slice in slices))

    def leave(self, sequence: Sequence) -> None:
        """Note that a sequence is about to end."""
        if self._drafter is not None:
            self._drafter.leave(sequence)

    def measured(self, load: StepLoad, seconds: float) -> None:
        """Note the `seconds` of a step's pass, without sampling, whose time depends on tokens alone."""
        if not load.prompt:
            self._costs[load.decoding].measured(load.drafted, seconds)

    def record_outcome(self, sequence: Sequence, draft: Draft, accepted: int, *, ended: bool) -> None:
        """Note that `accepted` tokens of a draft were right; then one was not, or the sequence `ended`."""
        assert sequence.drafting is not None
        outcomes = [1.0] * accepted + [0.0] * (accepted < len(draft.tokens) and not ended)
        for outcome in outcomes:
            for rates, weight in (
                (sequence.drafting.acceptance, _WEIGHT),
                (self._acceptance, _GENERAL_WEIGHT),
            ):
                rates[draft.source] += weight * (outcome - rates[draft.source])
        if draft.source != FORCED:
            self._allowance.add(accepted / self._streams)

    def close(self) -> None:
        if self._drafter is not None:
            self._drafter.close()

    def _offer(self, batch_slice: BatchSlice, drafting: Drafting) -> _Offer:
        """Return the draft that a sequence could have, limited to tokens that could be used."""
        sequence = batch_slice.sequence
        assert isinstance(sequence, Generation)
        most = max(min(MAX_DRAFT_TOKENS, self._most(sequence)), 0)
        if sequence.constraint is not None and (forced := sequence.constraint.forced()):
            return _Offer(batch_slice, drafting, FORCED, min(len(forced), most), forced)
        if closing := list(sequence.thinking.forced):
            return _Offer(batch_slice, drafting, FORCED, min(len(closing), most), closing)
        if drafting.mode == "format":
            return _Offer(batch_slice, drafting, FORCED, 0, [])
        if drafting.generated:
            assert self._drafter is not None
            most = min(most, self._drafter.context - len(sequence.inputs))
            return _Offer(batch_slice, drafting, GENERATED, most, [])
        source, tokens = self._lookup(sequence).look_up(most)
        return _Offer(batch_slice, drafting, source, len(tokens), tokens)

    def _known(self, sequence: Sequence) -> list[int]:
        """Return the next tokens of an answer begun elsewhere, as many as a step can repeat."""
        if not (isinstance(sequence, Generation) and sequence.resumed and sequence.decoding):
            return []
        most = max(min(MAX_SCORED, self._most(sequence)), 0)
        return sequence.resumed[sequence.generated : sequence.generated + most]

    def _most(self, sequence: Generation) -> int:
        """Return how many tokens could be of use after the newest one; 0 or less for none."""
        if sequence.constraint is not None and sequence.constraint.slow:
            return 0
        left = min(sequence.context, self._context) - len(sequence.inputs)
        return min(self._cache.max_drafts, left, sequence.limit - sequence.generated - 1)

    def _lookup(self, sequence: Sequence) -> PromptLookup:
        shifted, lookup = self._lookups.get(sequence, (-1, None))
        if lookup is None or shifted != sequence.shifted:
            lookup = PromptLookup(sequence.keys)
            self._lookups[sequence] = sequence.shifted, lookup
        return lookup

    def _choose(
        self, offers: list[_Offer], streams: int, cost: Cost, longest: float
    ) -> tuple[list[tuple[_Offer, int]], float]:
        """Return the offers to use, and how many tokens of each; and the time lost if all are wrong."""
        self._streams = streams
        estimate = StepEstimate(cost, streams)
        uncertain = [offer for offer in offers if offer.source != FORCED]
        forced = self._worthwhile(estimate, [each for each in offers if each.source == FORCED], longest)
        before, certain = replace(estimate), estimate.time
        chosen = self._worthwhile(estimate, uncertain, longest)
        if chosen and estimate.time - certain > self._allowance.left:
            estimate = before
            longest = min(longest, certain + self._allowance.left)
            chosen = self._worthwhile(estimate, uncertain, longest)
        elif uncertain and not chosen and not forced:
            offer = min(uncertain, key=lambda offer: offer.drafting.drafted)
            trial = cost.of(1)
            if offer.source == GENERATED:
                assert self._drafter is not None
                trial += self._drafter.pass_cost(cost.step_s)
                trial += self._drafter.catch_up_cost(offer.batch_slice.sequence, cost.step_s)
            if self._allowance.may_try(trial, first=not offer.drafting.drafted):
                self._allowance.spend(trial)
                return [(offer, 1)], trial
        price = estimate.time - certain
        self._allowance.spend(price)
        return forced + chosen, price

    def _worthwhile(
        self, estimate: StepEstimate, offers: list[_Offer], longest: float
    ) -> list[tuple[_Offer, int]]:
        """Return the offers that raise the expected tokens per time, and how many tokens of each."""
        drafter, step_s = self._drafter, estimate.cost.step_s
        pass_cost = drafter.pass_cost(step_s) if drafter is not None else 0.0
        chosen: list[tuple[_Offer, int]] = []
        for price, group in (
            (0.0, [offer for offer in offers if offer.source != GENERATED]),
            (pass_cost, [offer for offer in offers if offer.source == GENERATED]),
        ):
            candidates = [offer.candidate for offer in group]
            counts = estimate.add(candidates, pass_cost=price, longest=longest)
            chosen += [(offer, count) for offer, count in zip(group, counts, strict=True) if count]
        return chosen

    def _draft(self, offers: list[_Offer]) -> None:
        if not offers:
            return
        assert self._drafter is not None
        drafts = self._drafter.draft([(offer.batch_slice.sequence, offer.most) for offer in offers])
        for offer, tokens in zip(offers, drafts, strict=True):
            offer.tokens = tokens
