"""What clients do to a server: bursts, conversations, streams beside an engine in this process, idling."""

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
#: Letters that no merge of the random models' tokenizer joins: a text has as many tokens as characters.
LETTERS = "abcdefghijklmnopqrsuvwxyz"


@dataclass(frozen=True)
class Crowd:
    """Clients that ask at once."""

    name: str
    clients: int
    shared: int  # tokens all prompts begin with
    own: int  # tokens of each prompt after those
    answer: int  # tokens of each answer
    repetitions: int

    def prompts(self, repetition: int) -> list[str]:
        """The same for every server, new at every repetition."""
        dice = random.Random(f"{self.name} {repetition}")
        shared = text(dice, self.shared) if self.shared else ""
        return [shared + text(dice, self.own) for _ in range(self.clients)]


def text(dice: random.Random, tokens: int) -> str:
    """So many tokens of text: words of five letters, with no blank at the end."""
    letters = [dice.choice(LETTERS) if i % 6 else " " for i in range(1, tokens)]
    return "".join([*letters, dice.choice(LETTERS)])


async def burst(server: Server, crowd: Crowd, repetition: int) -> Burst:
    """All clients ask at once."""
    http = server.processes()[0]
    cpu_s, begin = used_s(http), time.perf_counter()
    answers = await ask_all(
        server.port, [server.completion(prompt, crowd.answer) for prompt in crowd.prompts(repetition)]
    )
    took = max(answer.heard[-1] for answer in answers) - begin
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
    """Tokens of an answer, as the server says; raises when the prompt had not as many as it was made of."""
    usage = answer.field("usage")
    if usage is None:  # llama-cpp-python does not say; it sends every token by itself
        return len(answer.heard)
    more = usage["prompt_tokens"] - crowd.shared - crowd.own
    if more not in (0, 1):  # Puna, as Ollama, begins a text with the model's first token unless told not to
        raise RuntimeError(f"a prompt has {more} tokens more than it was made of")
    return int(usage["completion_tokens"])


async def converse(server: Server, crowd: Crowd, new: int) -> Turns:
    """Twice as many conversations as clients: a turn of each; then, in another order, one of `new` tokens."""
    dice = random.Random(crowd.name)
    openings = [text(dice, crowd.own) for _ in range(2 * crowd.clients)]
    goings_on = [text(dice, new) for _ in openings]
    first: list[tuple[Turn, Answer]] = []
    for part in _parts(range(len(openings)), crowd.clients):
        first += await asyncio.gather(*(_turn(server, None, openings[i], crowd.answer) for i in part))
    order = list(range(len(openings)))
    dice.shuffle(order)
    second: list[tuple[Turn, Answer]] = []
    for part in _parts(order, crowd.clients):
        second += await asyncio.gather(
            *(_turn(server, first[i][0], goings_on[i], crowd.answer) for i in part)
        )
    return Turns(
        server.name,
        new=new + 1,  # the last token of the first answer has been said, but not evaluated
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
    """The same questions over HTTP and in this process, by turns; the first pair is not counted."""
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
    """What connections cost that were used once: memory, and processor time of all the server's processes."""
    connections = Idle()
    await connections.open(server.port, 10, server.greeting)  # what the first ones load is not theirs
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
    """Processor seconds of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def _memory(server: Server) -> int:
    """Bytes resident in all processes of a server."""
    return sum(process.memory_info().rss for process in server.processes())
