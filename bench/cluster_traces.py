"""Sessions of clients of a cluster, drawn from published statistics.

Lengths are log-normal with the published mean. Sources:

- conversations: ShareGPT, 161 tokens a message and 338 an answer (Kwon et al., PagedAttention, SOSP 2023,
  section 6.1), 5.75 turns a conversation (Gao et al., CachedAttention, USENIX ATC 2024, section 2)
- agents: the tool and agent trace of Mooncake, 8,596 tokens a prompt of which 59 % can be cached, 182 an
  answer (Qin et al., FAST 2025, table 2; github.com/kvcache-ai/Mooncake, FAST25-release/traces): prompts
  begin with the tools and rules of one of some kinds of agents, whose popularity follows Zipf's law
- bursts: many short questions about one document at the same moment; answers as in Mooncake's synthetic
  trace, 149 tokens
- unrelated: prompts that share nothing, lengths as the last turns of conversations

Pauses between turns are exponential; no trace that was published has them.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from puna.prefix_blocks import BLOCK

#: Standard deviation of the logarithm of lengths.
_SPREAD: Final = 0.8
MESSAGE, ANSWER, TURNS = 161, 338, 5.75
AGENT_PREFIX, AGENT_TASK, AGENT_RESULT, AGENT_ANSWER, AGENT_TURNS = 3000, 5200, 450, 182, 1.6
AGENT_KINDS = 32
DOCUMENT, QUESTION, BURST, BURST_ANSWER = 4096, 64, 16, 149


@dataclass(frozen=True)
class Turn:
    """One request of a session."""

    pause_s: float  # after the answer before
    tokens: int  # new ones
    answer: int


@dataclass
class Session:
    """Turns of one client, whose prompts begin with `shared` tokens of the text number `text`."""

    number: int
    begin_s: float
    turns: list[Turn]
    text: int = 0
    shared: int = 0
    digests: list[int] = field(default_factory=list)

    def blocks(self, tokens: int) -> list[int]:
        """Return the digests of the first `tokens` tokens of the session."""
        count, shared = tokens // BLOCK, self.shared // BLOCK
        while len(self.digests) < count:
            index = len(self.digests)
            self.digests.append(_digest(self.text if index < shared else self.number, index))
        return self.digests[:count]


def _digest(text: int, index: int) -> int:
    """Return one of different numbers of 64 bits (Fibonacci hashing, Knuth, volume 3, section 6.4)."""
    return (((text << 20) + index + 1) * 0x9E3779B97F4A7C15) & ((1 << 64) - 1)


def _length(dice: random.Random, mean: float) -> int:
    return max(1, round(dice.lognormvariate(math.log(mean) - _SPREAD**2 / 2, _SPREAD)))


def _turns(dice: random.Random, mean: float) -> int:
    """Draw from a geometric distribution."""
    return 1 + int(math.log(1 - dice.random()) / math.log(1 - 1 / mean)) if mean > 1 else 1


def conversations(dice: random.Random, pause_s: float) -> Iterator[Session]:
    for number in itertools.count(1):
        yield Session(number, 0.0, [
            Turn(dice.expovariate(1 / pause_s), _length(dice, MESSAGE), _length(dice, ANSWER))
            for _ in range(_turns(dice, TURNS))
        ])  # fmt: skip


def agents(dice: random.Random, pause_s: float) -> Iterator[Session]:
    kinds = range(1, AGENT_KINDS + 1)
    for number in itertools.count(AGENT_KINDS + 1):
        [kind] = dice.choices(kinds, [1 / rank for rank in kinds])
        turns = [
            Turn(dice.expovariate(1 / pause_s), _length(dice, AGENT_RESULT), _length(dice, AGENT_ANSWER))
            for _ in range(_turns(dice, AGENT_TURNS))
        ]
        turns[0] = Turn(0.0, AGENT_PREFIX + _length(dice, AGENT_TASK), turns[0].answer)
        yield Session(number, 0.0, turns, text=kind, shared=AGENT_PREFIX)


def bursts(dice: random.Random, pause_s: float) -> Iterator[Session]:
    numbers = itertools.count(1)
    while True:
        document = next(numbers)
        for _ in range(BURST):
            turn = Turn(0.0, DOCUMENT + _length(dice, QUESTION), _length(dice, BURST_ANSWER))
            yield Session(next(numbers), 0.0, [turn], text=document, shared=DOCUMENT)


def unrelated(dice: random.Random, pause_s: float) -> Iterator[Session]:
    for number in itertools.count(1):
        tokens = _length(dice, TURNS * (MESSAGE + ANSWER))
        yield Session(number, 0.0, [Turn(0.0, tokens, _length(dice, ANSWER))])


#: Generators, and how many sessions begin at the same moment.
TRACES: Final[dict[str, tuple[Callable[[random.Random, float], Iterator[Session]], int]]] = {
    "conversations": (conversations, 1),
    "agents": (agents, 1),
    "bursts": (bursts, BURST),
    "unrelated": (unrelated, 1),
}


def sessions(
    name: str, requests: int, interval_s: Callable[[Session], float], *, seed: int, pause_s: float
) -> list[Session]:
    """Draw sessions with at least so many requests in all.

    The time between them is exponential, with a mean that `interval_s` tells by the work of each.
    """
    dice = random.Random(f"{name} {seed}")
    generate, together = TRACES[name]
    drawn: list[Session] = []
    begin_s = due_s = 0.0
    for session in generate(dice, pause_s):
        if requests <= 0:
            break
        if len(drawn) % together == 0:
            begin_s += dice.expovariate(1 / due_s) if due_s else 0.0
            due_s = 0.0
        due_s += interval_s(session)
        session.begin_s = begin_s
        drawn.append(session)
        requests -= len(session.turns)
    return drawn
