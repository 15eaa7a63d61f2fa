"""Simulate clusters of many replicas under several routers: `make cluster-simulation`.

Discrete events: replicas have the speeds measured in docs/performance.json (one in four is half as
fast), batches are shared as the engine shares them (`puna.engine.batching.plan`,
`puna.engine.scheduler.Pace`), and caches forget the blocks used least recently. Requests are drawn from
published statistics (`cluster_traces`), policies are in `cluster_policies`; ours is the router itself, which
hears once a second what replicas remember. `--output docs` writes docs/cluster-simulation.json.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import statistics
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import report
from cluster_policies import POLICIES, Policy
from cluster_report import REPORT, Cost, Outcome, Run, cost_line, line
from cluster_traces import TRACES, Session, sessions

from puna.cluster.router import Router
from puna.prefix_blocks import BLOCK

PARALLEL: Final = 8
CACHE_BLOCKS: Final = 1024
REPORT_S: Final = 1.0
PAUSE_S: Final = 20.0
#: The share of the cluster's time that all requests take if nothing is reused.
LOAD: Final = 0.6
#: Requests per replica, and the fewest of a run.
REQUESTS: Final = 24
FEWEST: Final = 2000
#: The share of requests that only fill the caches.
WARM_UP: Final = 0.2
#: Replicas in a complete run, by traces.
COMPLETE: Final = [(4, list(TRACES)), (64, list(TRACES)), (512, list(TRACES)), (4096, ["conversations"])]
#: Time that prompts get of a step beside decoding, as a share of the latter, for each (scheduler.Pace).
_CAUTION: Final = 0.8
_DONE: Final = 1e-6


@dataclass(frozen=True)
class Speed:
    """The measured speeds of a node."""

    prompt_tokens_s: float
    one_s: float  # a step of one sequence
    all_s: float  # a step of `PARALLEL` sequences

    def step_s(self, streams: int) -> float:
        return self.one_s + (self.all_s - self.one_s) * (streams - 1) / (PARALLEL - 1)

    def slower(self, times: float) -> Speed:
        return Speed(self.prompt_tokens_s / times, self.one_s * times, self.all_s * times)


def measured_speed() -> Speed:
    """Return the speed of this machine with the first model of docs/performance.json."""
    results = [row.result for row in report.REPORT.read().run.rows()]
    model = results[0].model
    rates = {result.test: statistics.median(result.ours) for result in results if result.model == model}
    one_s, all_s = 1 / rates["decode"], PARALLEL / rates[f"decode, {PARALLEL} streams"]
    return Speed(rates["prompt of 512"], one_s, max(one_s, all_s))


@dataclass(eq=False)
class Request:
    """A turn under way."""

    number: int
    session: Session
    turn: int
    arrival_s: float
    tokens: int  # of the prompt
    answer: int
    digests: list[int]
    replica: int = 0
    cached: int = 0
    first_s: float = 0.0
    left: float = 0.0  # tokens of the prompt, then of the answer
    rate: float = 0.0
    followers: list[Request] = field(default_factory=list)


class Replica:
    """A runner with its batches and its cache, whose tokens flow at rates that change with its requests."""

    def __init__(self, speed: Speed) -> None:
        self.speed = speed
        self.waiting: deque[Request] = deque()
        self.prompts: list[Request] = []  # the oldest first
        self.answers: list[Request] = []
        self.blocks: OrderedDict[int, None] = OrderedDict()  # used least recently first
        self.pending: dict[int, Request] = {}
        self.added: set[int] = set()
        self.removed: set[int] = set()
        self.now_s = 0.0
        self.busy_s = 0.0
        self.version = 0  # of its next event

    def advance(self, now_s: float) -> None:
        """Let the tokens flow until `now_s`."""
        passed_s = now_s - self.now_s
        for request in (*self.prompts, *self.answers):
            request.left -= request.rate * passed_s
        self.busy_s += passed_s * bool(self.prompts or self.answers)
        self.now_s = now_s

    def admit(self) -> None:
        """Start waiting requests while there are slots."""
        while self.waiting and len(self.prompts) + len(self.answers) < PARALLEL:
            request = self.waiting.popleft()
            known = next(
                (i for i, digest in enumerate(request.digests) if digest not in self.blocks),
                len(request.digests),
            )
            if known < len(request.digests) and request.digests[known] in self.pending:
                self.pending[request.digests[known]].followers.append(request)
                continue
            self.touch(request.digests[:known])
            request.cached = min(known * BLOCK, request.tokens - 1)
            request.left = request.tokens - request.cached
            for digest in request.digests[known:]:
                self.pending.setdefault(digest, request)
            self.prompts.append(request)

    def evaluated(self, request: Request) -> None:
        """Move a request from its prompt to its answer."""
        self.prompts.remove(request)
        for digest in request.digests:
            if self.pending.get(digest) is request:
                del self.pending[digest]
        self.touch(request.digests)
        self.waiting.extendleft(reversed(request.followers))
        request.followers = []
        request.left = request.answer
        self.answers.append(request)

    def touch(self, digests: Sequence[int]) -> None:
        """Remember blocks as the newest, the first of a sequence longest."""
        for digest in reversed(digests):
            if digest in self.blocks:
                self.blocks.move_to_end(digest)
                continue
            self.blocks[digest] = None
            self.added.add(digest)
            self.removed.discard(digest)
        while len(self.blocks) > CACHE_BLOCKS:
            digest, _ = self.blocks.popitem(last=False)
            self.added.discard(digest)
            self.removed.add(digest)

    def next_s(self) -> float | None:
        """Set the rates of all requests, and return when the first of them is done."""
        prompts, answers = self.prompts, self.answers
        if not prompts and not answers:
            return None
        share = 0.0
        if prompts:
            due = _CAUTION * len(prompts)
            share = due / (1 + due) if answers else 1.0
            for request in prompts:
                request.rate = 0.0
            rate = self.speed.prompt_tokens_s * share
            oldest = prompts[0]
            shortest = min(prompts[1:], key=lambda request: request.left, default=oldest)
            oldest.rate += rate / 2
            shortest.rate += rate / 2
        if answers:
            rate = (1 - share) / self.speed.step_s(len(answers))
            for request in answers:
                request.rate = rate
        return self.now_s + min(
            max(request.left, 0.0) / request.rate for request in (*prompts, *answers) if request.rate
        )


def work_s(speed: Speed, session: Session) -> float:
    """Return the time that a session takes if nothing is reused and all slots are used."""
    context, total = 0, 0.0
    for turn in session.turns:
        context += turn.tokens
        total += context / speed.prompt_tokens_s + turn.answer * speed.all_s / PARALLEL
        context += turn.answer
    return total


def simulate(
    trace: str, count: int, make: type[Policy], *, requests: int, seed: int, load: float = LOAD
) -> Outcome:
    """Run a trace on `count` replicas."""
    fast = measured_speed()
    speeds = [fast.slower(1 + (number % 4 == 3)) for number in range(count)]
    capacity = sum(speed.prompt_tokens_s for speed in speeds) / fast.prompt_tokens_s
    drawn = sessions(
        trace, requests, lambda session: work_s(fast, session) / capacity / load, seed=seed, pause_s=PAUSE_S
    )
    policy = make([(speed.prompt_tokens_s, 1 / speed.all_s) for speed in speeds], PARALLEL, seed)
    replicas = [Replica(speed) for speed in speeds]
    order, numbers = itertools.count(), itertools.count()
    # (time, order, replica or -1, version, request); version -1 is an arrival, -2 the reports' time.
    events: list[tuple[float, int, int, int, Request | None]] = []
    done: list[Request] = []
    changed: set[int] = set()

    def arrive(session: Session, turn: int, at_s: float, before: int) -> None:
        now = session.turns[turn]
        tokens = before + now.tokens
        request = Request(next(numbers), session, turn, at_s, tokens, now.answer, session.blocks(tokens))
        heapq.heappush(events, (at_s, next(order), -1, -1, request))

    def schedule(number: int) -> None:
        replica = replicas[number]
        replica.version += 1
        at_s = replica.next_s()
        if at_s is not None:
            heapq.heappush(events, (at_s, next(order), number, replica.version, None))

    for session in drawn:
        arrive(session, 0, session.begin_s, 0)
    heapq.heappush(events, (REPORT_S, next(order), -1, -2, None))
    while events:
        now_s, _, number, version, request = heapq.heappop(events)
        if version == -2:
            for dirty in sorted(changed):
                policy.reported(dirty, replicas[dirty].added, replicas[dirty].removed)
                replicas[dirty].added, replicas[dirty].removed = set(), set()
            changed.clear()
            if events:
                heapq.heappush(events, (now_s + REPORT_S, next(order), -1, -2, None))
            continue
        if request is not None:
            number = request.replica = policy.choose(request.digests, request.tokens, now_s)
            policy.sent(request.number, number, now_s)
            replicas[number].advance(now_s)
            replicas[number].waiting.append(request)
        elif version != replicas[number].version:
            continue
        else:
            replica = replicas[number]
            replica.advance(now_s)
            for ready in [each for each in replica.prompts if each.left <= _DONE * each.tokens]:
                ready.first_s = now_s
                replica.evaluated(ready)
                policy.first_token(ready.number, now_s)
            for ended in [each for each in replica.answers if each.left <= _DONE * each.answer]:
                replica.answers.remove(ended)
                context = ended.tokens + ended.answer
                replica.touch(ended.session.blocks(context))
                evaluated = ended.tokens - ended.cached
                policy.finished(ended.number, number, now_s, evaluated, ended.answer)
                done.append(ended)
                if ended.turn + 1 < len(ended.session.turns):
                    pause_s = ended.session.turns[ended.turn + 1].pause_s
                    arrive(ended.session, ended.turn + 1, now_s + pause_s, context)
            changed.add(number)
        replicas[number].admit()
        schedule(number)
    counted = sorted(done, key=lambda request: request.arrival_s)[int(len(done) * WARM_UP) :]
    waits = sorted(request.first_s - request.arrival_s for request in counted)
    shares = [replica.busy_s for replica in replicas]
    return Outcome(
        trace, count, policy.name, len(counted),
        first_s=statistics.median(waits),
        first_p99_s=report.percentile(waits, 99),
        hits=sum(request.cached for request in counted) / sum(request.tokens for request in counted),
        imbalance=max(shares) / statistics.mean(shares),
    )  # fmt: skip


def decision_cost(count: int, tokens: int = 8192, rounds: int = 500) -> Cost:
    """Measure the processor time of one decision among replicas that remember less and less of a prompt."""
    router = Router()
    blocks = tokens // BLOCK
    prompt = Session(1, 0.0, []).blocks(tokens)
    for number in range(count):
        router.add(str(number), parallel=8, prompt_tokens_s=600, decode_tokens_s=40, kernels="")
        router.reported(str(number), prompt[: number * blocks // count])
    times = []
    for _ in range(rounds):
        began_s = time.thread_time()
        router.route(prompt, tokens, now_s=0.0)
        times.append(time.thread_time() - began_s)
    return Cost(count, tokens, statistics.median(times) * 1e6, report.percentile(sorted(times), 99) * 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, help="only this many (4 to 4096), with all traces")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--load", type=float, default=LOAD, help=f"share of the cluster's time, default {LOAD}"
    )
    parser.add_argument("--output", type=Path, help="write the report to this folder, `docs` to publish it")
    arguments = parser.parse_args()
    if arguments.replicas is not None and not 4 <= arguments.replicas <= 4096:
        parser.error("--replicas: expected 4 to 4096")
    runs = COMPLETE if arguments.replicas is None else [(arguments.replicas, list(TRACES))]
    outcomes = []
    for count, traces in runs:
        for trace in traces:
            for policy in POLICIES:
                requests = max(FEWEST, (REQUESTS if count < 1024 else 4) * count)
                outcomes.append(
                    simulate(
                        trace, count, policy, requests=requests, seed=arguments.seed, load=arguments.load
                    )
                )
                print(line(outcomes[-1]), flush=True)
    costs = [decision_cost(count) for count in (4, 64, 1000, 4096)]
    print("\n".join(map(cost_line, costs)))
    if arguments.output is not None:
        REPORT.write(
            Run(arguments.seed, arguments.load, PARALLEL, CACHE_BLOCKS * BLOCK, outcomes, costs),
            arguments.output,
        )


if __name__ == "__main__":
    main()
