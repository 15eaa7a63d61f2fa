"""Client workloads: bursts, conversations, streams compared with an engine in this process, idling."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil
from http_load import Answer, Idle, ask, ask_all
from inside import Inside
from report import percentile
from servers import Server, Turn
from serving_report import Burst, IdleCost, Streaming, Turns

IDLE_CONNECTIONS, IDLE_S = 1000, 10.0
#: Letters that the random models' tokenizer never merges, so that text has one token per character.
LETTERS = "abcdefghijklmnopqrsuvwxyz"


@dataclass(frozen=True)
class Crowd:
    """Clients that send their requests at the same time."""

    name: str
    clients: int
    shared: int  # tokens at the start of all prompts
    own: int  # tokens of each prompt after the shared ones
    answer: int  # tokens of each answer
    repetitions: int
    seen: bool = False  # whether another client has used the shared tokens before

    def prompts(self, repetition: int) -> list[str]:
        """Return prompts that are the same for every server, but different in every repetition.

        If the shared tokens are `seen`, the last prompt is the one that sends them first.
        """
        dice = random.Random(f"{self.name} {repetition}")
        shared = text(dice, self.shared) if self.shared else ""
        return [shared + text(dice, self.own) for _ in range(self.clients + self.seen)]


def text(dice: random.Random, tokens: int) -> str:
    """Return a text of `tokens` tokens: words of five letters, without a trailing space."""
    letters = [dice.choice(LETTERS) if i % 6 else " " for i in range(1, tokens)]
    return "".join([*letters, dice.choice(LETTERS)])


async def burst(server: Server, crowd: Crowd, repetition: int) -> Burst:
    """Measure all clients sending their requests at the same time."""
    asks = [server.completion(prompt, crowd.answer) for prompt in crowd.prompts(repetition)]
    if crowd.seen:
        await ask(server.port, asks.pop())
    http = server.processes()[0]
    cpu_s, begin = used_s(http), time.perf_counter()
    answers = await ask_all(server.port, asks)
    took = max(answer.arrivals[-1] for answer in answers) - begin
    cpu_s = used_s(http) - cpu_s
    counts = [_counted(answer, crowd) for answer in answers]
    if min(counts) < crowd.answer:
        print(f"  {server.name}: an answer ended after {min(counts)} of {crowd.answer} tokens", flush=True)
    first = [answer.first_s for answer in answers]
    gaps = [gap for answer in answers for gap in answer.gaps_s]
    return Burst(
        crowd.name, server.name, sum(counts) / took, statistics.median(first), percentile(first, 95),
        statistics.median(gaps), percentile(gaps, 95), cpu_s / took,
    )  # fmt: skip


def _counted(answer: Answer, crowd: Crowd) -> int:
    """Return the server's count of an answer's tokens, after checking the length of the prompt."""
    usage = answer.field("usage")
    if usage is None:  # llama-cpp-python does not report it, but sends every token by itself
        return len(answer.arrivals)
    more = usage["prompt_tokens"] - crowd.shared - crowd.own
    if more not in (0, 1):  # like Ollama, Puna adds BOS
        raise RuntimeError(f"a prompt has {more} tokens more than expected")
    return int(usage["completion_tokens"])


async def converse(server: Server, crowd: Crowd, new: int) -> Turns:
    """Measure the second turns of twice as many conversations as clients.

    The second turns, each with `new` tokens, follow after all first turns, in another order.
    """
    dice = random.Random(crowd.name)
    openings = [text(dice, crowd.own) for _ in range(2 * crowd.clients)]
    second_prompts = [text(dice, new) for _ in openings]
    first: list[tuple[Turn, Answer]] = []
    for part in _parts(range(len(openings)), crowd.clients):
        first += await asyncio.gather(*(_turn(server, None, openings[i], crowd.answer) for i in part))
    order = list(range(len(openings)))
    dice.shuffle(order)
    second: list[tuple[Turn, Answer]] = []
    for part in _parts(order, crowd.clients):
        second += await asyncio.gather(
            *(_turn(server, first[i][0], second_prompts[i], crowd.answer) for i in part)
        )
    return Turns(
        server.name,
        new=new + 1,  # the last token of the first answer was generated but not evaluated
        evaluated=[turn.evaluated for turn, _ in second],
        prompt=[turn.prompt_tokens for turn, _ in second],
        first_s=[answer.first_s for _, answer in second],
    )


async def _turn(server: Server, before: Turn | None, prompt: str, tokens: int) -> tuple[Turn, Answer]:
    answer = await ask(server.port, server.turn(before, prompt, tokens))
    return server.turned(before, prompt, answer), answer


def _parts(items: Sequence[int], size: int) -> list[Sequence[int]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def stream(server: Server, inside: Inside, crowd: Crowd) -> Streaming:
    """Measure the same requests over HTTP and in this process, alternating; the first pair is a warm-up."""
    result = Streaming(crowd.clients, crowd.answer, [], [], [])
    for repetition in range(crowd.repetitions + 1):
        in_process = inside.rate(crowd.prompts(repetition), crowd.answer) if repetition % 2 else None
        over_http = asyncio.run(burst(server, crowd, repetition))
        if in_process is None:
            in_process = inside.rate(crowd.prompts(repetition), crowd.answer)
        if repetition:
            result.inside.append(in_process)
            result.http.append(over_http.rate)
            result.http_cpu.append(over_http.http_cpu)
    return result


async def idle(server: Server) -> IdleCost:
    """Measure the memory and processor time of idle connections in all processes of the server."""
    connections = Idle()
    await connections.open(server.port, 10, server.greeting)  # the first ones also load code
    before = _memory(server)
    await connections.open(server.port, IDLE_CONNECTIONS, server.greeting)
    grown = _memory(server) - before
    cpu_s = sum(map(used_s, server.processes()))
    await asyncio.sleep(IDLE_S)
    cpu_s = sum(map(used_s, server.processes())) - cpu_s
    left = connections.open_now()
    await connections.close()
    return IdleCost(server.name, IDLE_CONNECTIONS + 10, left, grown, cpu_s, IDLE_S)


def used_s(process: psutil.Process) -> float:
    """Return the processor time of a process so far, in seconds."""
    times = process.cpu_times()
    return float(times.user + times.system)


def _memory(server: Server) -> int:
    """Return the resident bytes of all processes of a server."""
    return sum(process.memory_info().rss for process in server.processes())
