"""The router: which replica of a model gets a request.

Pure bookkeeping without Ray and without a clock: times are passed in, in seconds of any steady clock. The
router knows what each replica remembers (digests of `puna.prefix_blocks`, as runners report them), what was
sent to it and is not answered yet, and how fast it has been. It chooses the replica of least cost:

    cost     = expected + WORK * own / mean speed
    expected = (own + ahead) / speed + wait for a slot         (time to the first token)

`own` are the tokens of the prompt that the replica does not remember. `ahead` are those of other prompts that
it evaluates first: the engine gives half of each batch to its oldest prompt and the rest to the shortest ones
(`puna.engine.batching.plan`), so a prompt waits for all others at most, and for less if it is short. Beside
answers, a lone prompt gets less than half of the time (`puna.engine.scheduler.Pace`). The replica's own work
is weighed because it delays everyone else, by the speed of all, so that it decides nothing between replicas
that remember as much. A replica is therefore chosen for what it remembers unless its
queue costs more time than that saves.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from puna.options import MAX_REPLICAS
from puna.prefix_blocks import BLOCK

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Maximum reported blocks of a replica, and of all together, of which each has its share. More
#: are ignored, which costs time only.
MAX_BLOCKS: Final = 1 << 16
_MAX_TOTAL: Final = 1 << 22
#: Weight of a replica's own work for a request, which delays later ones (best in
#: bench/cluster_simulation.py).
WORK: Final = 0.5
#: Weight of a new measurement.
_WEIGHT: Final = 0.1
#: Evaluating fewer tokens takes as long as its latency, which says nothing about speed.
_MEASURABLE: Final = 256
#: Time of a step that each prompt gets beside answers, as a multiple of theirs
#: (`puna.engine.scheduler.Pace`).
_PROMPT_SHARE: Final = 0.8
#: Tokens of an answer, before any was measured.
_ANSWER_TOKENS: Final = 256
#: Costs in seconds that differ by less are equal.
_EQUAL_S: Final = 1e-9


@dataclass(frozen=True, eq=False)
class Route:
    """The choice for one request; the caller says with it what becomes of the request."""

    replica: str
    kernels: str
    overlap_tokens: int  # of the prompt that the replica remembers
    expected_s: float  # to the first token
    own_tokens: int  # of the prompt that the replica has to evaluate
    digests: Sequence[int] = field(repr=False)


@dataclass(frozen=True)
class ReplicaLoad:
    """The state of a replica as the router knows it."""

    sequences: int
    waiting_tokens: int  # of prompts not evaluated yet
    blocks: int  # that it reported
    prompt_tokens_s: float
    decode_tokens_s: float  # of one sequence
    draining: bool


@dataclass
class _Speed:
    """A speed by exponentially weighted sums, in which long measurements count for more than short ones.

    The first measurement replaces what was assumed.
    """

    tokens: float
    seconds: float
    measured: bool = False

    def measure(self, tokens: float, seconds: float) -> None:
        weight = _WEIGHT if self.measured else 1.0
        self.tokens += weight * (tokens - self.tokens)
        self.seconds += weight * (max(seconds, 1e-9) - self.seconds)
        self.measured = True

    @property
    def tokens_s(self) -> float:
        return self.tokens / self.seconds


@dataclass
class _Answering:
    """A request whose prompt is evaluated: its replica evaluated `tokens` in `prompt_s` (0: not measured)."""

    first_s: float
    tokens: int
    prompt_s: float


@dataclass
class _Replica:
    """Everything about a replica that is not in a column of the router."""

    slot: int
    bit: int  # of its slot, in masks
    kernels: str
    prompt: _Speed
    answer: _Speed  # its tokens are the mean length of answers
    reported: set[int] = field(default_factory=set)
    promised: dict[int, int] = field(default_factory=dict)  # digest -> requests that leave it
    reports: int = 0
    lapsing: deque[tuple[int, Sequence[int]]] = field(default_factory=deque)  # reports at the end, promises
    lapsing_blocks: int = 0
    prompts: dict[Route, None] = field(default_factory=dict)  # being evaluated, the oldest first
    answers: dict[Route, _Answering] = field(default_factory=dict)
    measured_tokens: int = 0  # of prompts that were evaluated since `measured_s`
    measured_s: float = 0.0


class Router:
    """The replicas of one model.

    None gets more sequences than it has slots and than `bound` times (their mean + 1). Methods raise KeyError
    for unknown replicas.
    """

    def __init__(self, bound: float = 2.0) -> None:
        if not bound >= 1:
            raise ValueError(f"the bound on imbalance is {bound}, expected at least 1")
        self._bound = bound
        self._replicas: dict[str, _Replica] = {}
        self._names: list[str | None] = []  # by slot
        self._index: dict[int, int] = {}  # digest -> mask of the slots that remember it, or will
        self._evaluating: dict[int, int] = {}  # digest -> mask of those that are still evaluating it
        self._unmeasured: set[str] = set()  # replicas whose speed is assumed
        self._turn = 0  # the slot after the one chosen last
        # Columns by slot.
        self._open = np.zeros(MAX_REPLICAS, np.bool_)
        self._kernels = np.full(MAX_REPLICAS, "", np.object_)
        self._parallel = np.ones(MAX_REPLICAS)
        self._sequences = np.zeros(MAX_REPLICAS)
        self._token_s = np.ones(MAX_REPLICAS)  # of a prompt
        self._slot_s = np.ones(MAX_REPLICAS)  # until one of all slots becomes free
        self._prompts = np.zeros(MAX_REPLICAS)
        self._waiting = np.zeros(MAX_REPLICAS)  # tokens of these prompts
        self._oldest = np.zeros(MAX_REPLICAS)  # tokens of the oldest of them
        self._since_s = np.zeros(MAX_REPLICAS)  # when it became the oldest

    def __contains__(self, replica: str) -> bool:
        return replica in self._replicas

    def __len__(self) -> int:
        return len(self._replicas)

    # --- replicas ------------------------------------------------------------------------------------

    def add(
        self, replica: str, *, parallel: int, prompt_tokens_s: float, decode_tokens_s: float, kernels: str
    ) -> None:
        """Add a replica that answers `parallel` requests at a time, with speeds to assume until any is known.

        Raises `ValueError` for a replica that is known, for too many, and for values that are not positive.
        """
        if replica in self._replicas:
            raise ValueError(f"the replica {replica!r} is known already")
        if len(self._replicas) >= MAX_REPLICAS:
            raise ValueError(f"a model has at most {MAX_REPLICAS} replicas")
        if not (parallel > 0 and 0 < prompt_tokens_s < math.inf and 0 < decode_tokens_s < math.inf):
            raise ValueError(f"the replica {replica!r} has a speed or slots that are not positive")
        if None in self._names:
            slot = self._names.index(None)
            self._names[slot] = replica
        else:
            slot = len(self._names)
            self._names.append(replica)
        self._replicas[replica] = added = _Replica(
            slot,
            1 << slot,
            kernels,
            prompt=_Speed(_MEASURABLE, _MEASURABLE / prompt_tokens_s),
            answer=_Speed(_ANSWER_TOKENS, _ANSWER_TOKENS / decode_tokens_s),
        )
        self._open[slot] = True
        self._kernels[slot] = kernels
        self._parallel[slot] = parallel
        for column in (self._sequences, self._prompts, self._waiting, self._oldest, self._since_s):
            column[slot] = 0
        self._unmeasured.add(replica)
        self._adopt_speeds(added)

    def remove(self, replica: str) -> None:
        """Forget a replica, and the requests that it has."""
        gone = self._replicas.pop(replica)
        self._unmeasured.discard(replica)
        for digest in gone.reported | gone.promised.keys():
            _clear(self._index, digest, gone.bit)
        for route in gone.prompts:
            self._evaluated(gone, route)
        self._open[gone.slot] = False
        self._names[gone.slot] = None
        while self._names and self._names[-1] is None:
            self._names.pop()

    def drain(self, replica: str) -> None:
        """Send no more requests to a replica."""
        self._open[self._replicas[replica].slot] = False

    def load(self, replica: str) -> ReplicaLoad:
        """Return the state of a replica."""
        known = self._replicas[replica]
        return ReplicaLoad(
            sequences=int(self._sequences[known.slot]),
            waiting_tokens=int(self._waiting[known.slot]),
            blocks=len(known.reported),
            prompt_tokens_s=known.prompt.tokens_s,
            decode_tokens_s=known.answer.tokens_s,
            draining=not self._open[known.slot],
        )

    def reported(
        self, replica: str, added: Iterable[int], removed: Iterable[int] = (), whole: bool = False
    ) -> None:
        """Take over a report of what a replica remembers: `removed` digests are gone, `added` ones are there.

        If `whole`, `added` is everything. See `puna.protocol.PrefixReport`.
        What a request promised when it ended is believed until the second report after its end, because the
        first one may have been on its way.
        """
        known = self._replicas[replica]
        added = set(added)
        for digest in known.reported - added if whole else known.reported.intersection(removed):
            known.reported.discard(digest)
            if digest not in known.promised:
                _clear(self._index, digest, known.bit)
        most = min(MAX_BLOCKS, _MAX_TOTAL // len(self._replicas))
        for digest in added - known.reported:
            if len(known.reported) >= most:
                break
            known.reported.add(digest)
            self._index[digest] = _with(self._index.get(digest, 0), known.bit)
        known.reports += 1
        while known.lapsing and known.lapsing[0][0] <= known.reports - 2:
            self._lapse(known)

    # --- requests ------------------------------------------------------------------------------------

    def route(
        self,
        digests: Sequence[int],
        tokens: int,
        *,
        now_s: float,
        kernels: str | None = None,
        exclude: Collection[str] = (),
    ) -> Route | None:
        """Choose a replica for a prompt of `tokens` whose whole blocks have these digests.

        Those with the given `kernels` are preferred. Returns None if all replicas are excluded or draining.
        """
        count = len(self._names)
        candidates = self._open[:count].copy()
        for name in exclude:
            if name in self._replicas:
                candidates[self._replicas[name].slot] = False
        if kernels is not None:
            same = candidates & (self._kernels[:count] == kernels)
            candidates = same if same.any() else candidates
        if not candidates.any():
            return None
        sequences, parallel = self._sequences[:count], self._parallel[:count]
        mean = sequences[candidates].sum() / parallel[candidates].sum() * parallel
        # The least loaded candidate is never above the mean, so one remains.
        candidates &= (sequences < parallel) | (sequences <= self._bound * (mean + 1) - 1)
        overlap, behind = self._overlaps(digests, count)
        # The last token is always evaluated, since the logits after it are needed.
        own = tokens - np.minimum(overlap * BLOCK, max(tokens - 1, 0))
        token_s = self._token_s[:count] * _slowdown(
            self._prompts[:count] + 1, sequences > self._prompts[:count]
        )
        own_s = own * token_s
        expected_s = own_s + self._ahead_s(own_s, token_s, behind, now_s)
        expected_s += np.maximum(sequences - parallel + 1, 0) * self._slot_s[:count]
        work_s = own * self._token_s[:count][candidates].mean()
        cost = np.where(candidates, expected_s + WORK * work_s, np.inf)
        slot = self._best(cost, sequences)
        if tokens:  # rendering a prompt, which precedes the choice, takes no turn
            self._turn = slot + 1
        chosen = self._names[slot]
        assert chosen is not None, "only open slots are candidates"
        return Route(
            chosen, self._replicas[chosen].kernels, tokens - int(own[slot]), float(expected_s[slot]),
            int(own[slot]), digests,
        )  # fmt: skip

    def began(self, route: Route, now_s: float) -> None:
        """Note that the request was sent to its replica, which will remember the prompt."""
        known = self._replicas[route.replica]
        slot = known.slot
        if not known.prompts:
            self._oldest[slot], self._since_s[slot] = route.own_tokens, now_s
            known.measured_tokens, known.measured_s = 0, now_s
        known.prompts[route] = None
        self._sequences[slot] += 1
        self._prompts[slot] += 1
        self._waiting[slot] += route.own_tokens
        for digest in route.digests:
            known.promised[digest] = known.promised.get(digest, 0) + 1
            self._index[digest] = _with(self._index.get(digest, 0), known.bit)
        for digest in route.digests[route.overlap_tokens // BLOCK :]:
            self._evaluating[digest] = _with(self._evaluating.get(digest, 0), known.bit)

    def first_token(self, route: Route, now_s: float) -> None:
        """Note that the prompt is evaluated. Requests that are not under way are ignored."""
        known = self._replicas.get(route.replica)
        if known is None or route not in known.prompts:
            return
        known.answers[route] = answering = _Answering(now_s, 0, 0.0)
        known.measured_tokens += route.own_tokens
        self._end_prompt(known, route, now_s)
        # The time of short prompts beside others is counted when those are evaluated.
        if known.measured_tokens >= _MEASURABLE or not known.prompts:
            slowdown = _slowdown(np.float64(len(known.prompts) + 1), np.bool_(len(known.answers) > 1))
            answering.tokens = known.measured_tokens
            answering.prompt_s = (now_s - known.measured_s) / float(slowdown)
            known.measured_tokens, known.measured_s = 0, now_s

    def finished(
        self, route: Route, now_s: float, *, evaluated: int | None = None, generated: int = 0
    ) -> None:
        """Note the end of a request, whatever its reason. Requests that are not under way are ignored.

        `evaluated` and `generated` are the tokens of the prompt and the answer; without them, the request is
        not measured.
        """
        known = self._replicas.get(route.replica)
        if known is None:
            return
        if route in known.prompts:  # failed or cancelled before it left anything
            self._end_prompt(known, route, now_s)
            self._release(known, route.digests)
        elif (answering := known.answers.pop(route, None)) is not None:
            self._measure(known, route, answering, now_s, evaluated, generated)
            known.lapsing.append((known.reports, route.digests))
            known.lapsing_blocks += len(route.digests)
            while known.lapsing_blocks > MAX_BLOCKS:
                self._lapse(known)
        else:
            return
        self._sequences[known.slot] -= 1

    # --- costs ---------------------------------------------------------------------------------------

    def _overlaps(
        self, digests: Sequence[int], count: int
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_] | None]:
        """Return how many of the first blocks each slot remembers, and which are still evaluating some.

        Caches that forget have only some of the blocks, and remember all up to the last of them.
        """
        index, evaluating = self._index, self._evaluating
        masks, depths = [], []
        seen = behind = 0
        for depth in range(len(digests), 0, -1):
            digest = digests[depth - 1]
            holders = index.get(digest, 0)
            new = holders & ~seen
            if new:
                masks.append(new)
                depths.append(depth)
                seen |= new
            if digest in evaluating:
                behind |= holders & evaluating[digest]
        if not seen:
            return np.zeros(count, np.float32), None
        overlap = np.array(depths, np.float32) @ _bits(masks, count).astype(np.float32)
        return overlap, _bits([behind], count)[0].view(np.bool_) if behind else None

    def _ahead_s(
        self,
        own_s: NDArray[np.float64],
        token_s: NDArray[np.float64],
        behind: NDArray[np.bool_] | None,
        now_s: float,
    ) -> NDArray[np.float64]:
        """Return the time that each replica spends on other prompts before it has evaluated this one."""
        count = len(own_s)
        prompts = self._prompts[:count]
        done_s = np.minimum(np.maximum(now_s - self._since_s[:count], 0), self._oldest[:count] * token_s)
        waiting_s = np.maximum(self._waiting[:count] * token_s - done_s, 0)
        most_s = own_s * np.maximum(2 * prompts - 1, 0)
        if behind is not None:  # what it shares with another prompt comes with that
            most_s[behind] = np.inf
        return np.minimum(waiting_s, most_s)

    def _best(self, cost: NDArray[np.float64], sequences: NDArray[np.float64]) -> int:
        """Return the slot of least cost, with the fewest sequences, that is next in turn."""
        equal = np.flatnonzero(cost <= cost.min() + _EQUAL_S)
        if len(equal) > 1:
            counts = sequences[equal]
            equal = equal[counts == counts.min()]
            later = int(np.searchsorted(equal, self._turn))
            return int(equal[later % len(equal)])
        return int(equal[0])

    # --- bookkeeping ---------------------------------------------------------------------------------

    def _end_prompt(self, known: _Replica, route: Route, now_s: float) -> None:
        """Note that a replica has no more work with a prompt."""
        was_oldest = next(iter(known.prompts)) is route
        del known.prompts[route]
        self._prompts[known.slot] -= 1
        self._waiting[known.slot] -= route.own_tokens
        self._evaluated(known, route)
        if was_oldest:
            oldest = next(iter(known.prompts), None)
            self._oldest[known.slot] = oldest.own_tokens if oldest is not None else 0
            self._since_s[known.slot] = now_s

    def _evaluated(self, known: _Replica, route: Route) -> None:
        for digest in route.digests[route.overlap_tokens // BLOCK :]:
            _clear(self._evaluating, digest, known.bit)

    def _release(self, known: _Replica, digests: Sequence[int]) -> None:
        """Drop the promises of one request."""
        for digest in digests:
            known.promised[digest] -= 1
            if not known.promised[digest]:
                del known.promised[digest]
                if digest not in known.reported:
                    _clear(self._index, digest, known.bit)

    def _lapse(self, known: _Replica) -> None:
        """Drop the promises of the request that ended first."""
        _, digests = known.lapsing.popleft()
        known.lapsing_blocks -= len(digests)
        self._release(known, digests)

    def _measure(
        self,
        known: _Replica,
        route: Route,
        answering: _Answering,
        now_s: float,
        evaluated: int | None,
        generated: int,
    ) -> None:
        if answering.prompt_s and evaluated is not None:
            tokens = answering.tokens - route.own_tokens + evaluated
            if tokens >= _MEASURABLE:
                known.prompt.measure(tokens, answering.prompt_s)
                self._unmeasured.discard(route.replica)
        if generated > 1:
            known.answer.measure(generated - 1, now_s - answering.first_s)
        self._adopt_speeds(known)
        # Nothing is known of others yet, so they are taken to be as fast, and get their share.
        for name in self._unmeasured:
            other = self._replicas[name]
            other.prompt = _Speed(known.prompt.tokens, known.prompt.seconds)
            if not other.answer.measured:
                other.answer = _Speed(known.answer.tokens, known.answer.seconds)
            self._adopt_speeds(other)

    def _adopt_speeds(self, known: _Replica) -> None:
        self._token_s[known.slot] = 1 / known.prompt.tokens_s
        self._slot_s[known.slot] = known.answer.seconds / self._parallel[known.slot]


def _slowdown(prompts: Any, decoding: Any) -> Any:
    """Return how many times as long prompts take beside answers, which get the rest of each step."""
    return 1 + decoding / (_PROMPT_SHARE * prompts)


def _with(mask: int, bit: int) -> int:
    """Return the mask with a bit set; masks of one slot are the same object, since most digests have one."""
    return mask | bit if mask else bit


def _clear(masks: dict[int, int], digest: int, bit: int) -> None:
    """Clear a bit of a digest's mask, which may be clear already."""
    left = masks.get(digest, 0) & ~bit
    if left:
        masks[digest] = left
    else:
        masks.pop(digest, None)


def _bits(masks: Sequence[int], count: int) -> NDArray[np.uint8]:
    """Return masks as an array [masks, count] of 0 and 1."""
    width = -(-count // 8)
    data = b"".join(mask.to_bytes(width, "little") for mask in masks)
    rows = np.frombuffer(data, np.uint8).reshape(len(masks), width)
    return np.unpackbits(rows, axis=1, count=count, bitorder="little")
