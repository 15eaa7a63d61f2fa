"""Policies that choose a replica: ours is the router of Puna itself, others are written after what they
do."""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

import numpy as np

from puna.cluster.router import Route, Router
from puna.prefix_blocks import BLOCK


class Policy:
    """A choice among replicas 0..n-1 with `parallel` slots each, which counts the sequences of each."""

    name: ClassVar[str]

    def __init__(self, speeds: Sequence[tuple[float, float]], parallel: int, seed: int) -> None:
        self.count = len(speeds)
        self.parallel = parallel
        self.sequences = np.zeros(self.count, np.int64)
        self.dice = random.Random(seed)

    def choose(self, digests: Sequence[int], tokens: int, now_s: float) -> int:
        raise NotImplementedError

    def sent(self, request: int, replica: int, now_s: float) -> None:
        self.sequences[replica] += 1

    def first_token(self, request: int, now_s: float) -> None:
        """Note that a prompt is evaluated."""

    def finished(self, request: int, replica: int, now_s: float, evaluated: int, generated: int) -> None:
        self.sequences[replica] -= 1

    def reported(self, replica: int, added: Iterable[int], removed: Iterable[int]) -> None:
        """Take a report of a replica's cache; most policies guess it instead."""

    def least(self) -> int:
        """Return a replica with the fewest sequences."""
        return self.dice.choice(np.flatnonzero(self.sequences == self.sequences.min()).tolist())

    @property
    def gap(self) -> tuple[int, int]:
        """The most and the fewest sequences of a replica."""
        return int(self.sequences.max()), int(self.sequences.min())


class RoundRobin(Policy):
    name = "round robin"
    turn = -1

    def choose(self, digests: Sequence[int], tokens: int, now_s: float) -> int:
        self.turn = (self.turn + 1) % self.count
        return self.turn


class LeastLoaded(Policy):
    name = "least loaded"

    def choose(self, digests: Sequence[int], tokens: int, now_s: float) -> int:
        return self.least()


class ConsistentHashing(Policy):
    """A ring (Karger et al., STOC 1997) of the first blocks."""

    name = "consistent hashing"
    points: Final = 100  # of each replica
    blocks: Final = 2

    def __init__(self, speeds: Sequence[tuple[float, float]], parallel: int, seed: int) -> None:
        super().__init__(speeds, parallel, seed)
        ring = sorted(
            (self.dice.getrandbits(64), replica) for replica in range(self.count) for _ in range(self.points)
        )
        self.keys, self.owners = [key for key, _ in ring], [replica for _, replica in ring]

    def choose(self, digests: Sequence[int], tokens: int, now_s: float) -> int:
        key = digests[min(self.blocks, len(digests)) - 1] if digests else self.dice.getrandbits(64)
        return self.owners[bisect(self.keys, key) % len(self.owners)]


class SGLang(Policy):
    """The cache-aware policy of SGLang's router, with the defaults of its command line but one.

    A tree of what was sent tells the replica that had the longest prefix last. It is chosen if that is more
    than `matched` of the prompt, otherwise the one with the smallest tree. When the most and the fewest
    sequences differ by more than `apart` and `times`, the least loaded one is. `apart` is 64 by default,
    which slots as few as ours never reach, so it is their number here.
    """

    name = "approximate tree (SGLang)"
    matched: Final = 0.3
    times: Final = 1.5

    def __init__(self, speeds: Sequence[tuple[float, float]], parallel: int, seed: int) -> None:
        super().__init__(speeds, parallel, seed)
        self.last: dict[int, int] = {}
        self.sizes = np.zeros(self.count, np.int64)

    def choose(self, digests: Sequence[int], tokens: int, now_s: float) -> int:
        most, fewest = self.gap
        if most - fewest > self.parallel and most > self.times * fewest:
            chosen = self.least()
        else:
            depth = next((i for i, digest in enumerate(digests) if digest not in self.last), len(digests))
            if depth * BLOCK > self.matched * tokens:
                chosen = self.last[digests[depth - 1]]
            else:
                chosen = int(self.sizes.argmin())
        for digest in digests:
            if self.last.get(digest) != chosen:
                self.sizes[chosen] += 1
                self.last[digest] = chosen
        return chosen


class RayServe(Policy):
    """The prefix-aware router of Ray Serve.

    Of the replicas that were sent the longest prefix, the less loaded one of two is chosen if that prefix is
    at least `matched` of the prompt, otherwise the one with the smallest tree; and the less loaded of any two
    when the most and the fewest sequences differ by more than a threshold, which is infinite by default and
    the number of slots here.
    """

    name = "prefix-aware (Ray Serve)"
    matched: Final = 0.1

    def __init__(self, speeds: Sequence[tuple[float, float]], parallel: int, seed: int) -> None:
        super().__init__(speeds, parallel, seed)
        self.holders: dict[int, set[int]] = {}
        self.sizes = np.zeros(self.count, np.int64)

    def choose(self, digests: Sequence[int], tokens: int, now_s: float) -> int:
        most, fewest = self.gap
        if most - fewest > self.parallel:
            chosen = self.of_two(range(self.count))
        else:
            depth = next((i for i, digest in enumerate(digests) if digest not in self.holders), len(digests))
            if depth and depth * BLOCK >= self.matched * tokens:
                chosen = self.of_two(sorted(self.holders[digests[depth - 1]]))
            else:
                chosen = int(self.sizes.argmin())
        for digest in digests:
            holders = self.holders.setdefault(digest, set())
            if chosen not in holders:
                self.sizes[chosen] += 1
                holders.add(chosen)
        return chosen

    def of_two(self, replicas: Sequence[int]) -> int:
        """Return the less loaded of two replicas (Mitzenmacher, 1996)."""
        return min(
            self.dice.sample(replicas, min(2, len(replicas))), key=lambda replica: self.sequences[replica]
        )


class Ours(Policy):
    """`puna.cluster.router`."""

    name = "Puna"

    def __init__(self, speeds: Sequence[tuple[float, float]], parallel: int, seed: int) -> None:
        super().__init__(speeds, parallel, seed)
        self.router = Router()
        self.under_way: dict[int, Route] = {}
        self.route: Route | None = None
        for replica, (prompt_tokens_s, decode_tokens_s) in enumerate(speeds):
            self.router.add(
                str(replica), parallel=parallel, prompt_tokens_s=prompt_tokens_s,
                decode_tokens_s=decode_tokens_s, kernels="",
            )  # fmt: skip

    def choose(self, digests: Sequence[int], tokens: int, now_s: float) -> int:
        self.route = self.router.route(digests, tokens, now_s=now_s)
        assert self.route is not None
        return int(self.route.replica)

    def sent(self, request: int, replica: int, now_s: float) -> None:
        super().sent(request, replica, now_s)
        assert self.route is not None
        self.under_way[request] = self.route
        self.router.began(self.route, now_s)

    def first_token(self, request: int, now_s: float) -> None:
        self.router.first_token(self.under_way[request], now_s)

    def finished(self, request: int, replica: int, now_s: float, evaluated: int, generated: int) -> None:
        super().finished(request, replica, now_s, evaluated, generated)
        route = self.under_way.pop(request)
        self.router.finished(route, now_s, evaluated=evaluated, generated=generated)

    def reported(self, replica: int, added: Iterable[int], removed: Iterable[int]) -> None:
        self.router.reported(str(replica), added, removed)


POLICIES: Final[list[type[Policy]]] = [RoundRobin, LeastLoaded, ConsistentHashing, SGLang, RayServe, Ours]
