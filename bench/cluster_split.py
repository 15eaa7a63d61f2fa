"""Measure a model in several processes against one: python bench/cluster_split.py MODEL.gguf --cuts 8,16

All processes are on this machine and use one thread each, so prompts gain from more of them, while each token
of an answer passes through all of them in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from puna.options import Options
from puna.protocol import Chunk, Generate, Load, Pong, SplitLoad, StageAddress
from puna.runner.client import LocalRunner


@asynccontextmanager
async def loaded(path: str, cuts: list[int], layers: int, context: int) -> AsyncIterator[LocalRunner]:
    """Load the model in stages that begin with layer 0 and with each of `cuts`; yield the first."""
    whole = Load(path=path, num_ctx=context, num_thread=1)
    ends = [*cuts[1:], layers] if cuts else []
    others = tuple(
        StageAddress(node=f"process {begin}", begin=begin, end=end, address="127.0.0.1")
        for begin, end in zip(cuts, ends, strict=True)
    )
    secret, runners = secrets.token_bytes(32), [await LocalRunner.spawn() for _ in range(len(cuts) + 1)]
    try:
        known = []
        for number, (place, runner) in enumerate(zip(others, runners[1:], strict=True), 1):
            split = SplitLoad(number=number, stages=others, secret=secret)
            await runner.load(msgspec.structs.replace(whole, split=split))
            known.append(msgspec.structs.replace(place, port=runner.info.port))
        first = SplitLoad(number=0, stages=tuple(known), secret=secret) if cuts else None
        await runners[0].load(msgspec.structs.replace(whole, split=first))
        yield runners[0]
    finally:
        for runner in runners:
            await runner.close()


async def measure(runner: LocalRunner, prompt: int, answer: int) -> tuple[float, float, list[Pong]]:
    """Return the seconds of a prompt and of each token after it, and the costs before, between and after."""
    pongs = [await runner.ping()]
    times = [time.monotonic()]
    request = Generate(
        prompt=[1 + i % 250 for i in range(prompt)],
        options=Options(num_predict=answer, temperature=0.0),
        ignore_eos=True,
        cache_prompt=False,
    )
    async with contextlib.aclosing(runner.generate(request)) as events:
        async for event in events:
            if isinstance(event, Chunk):
                times.append(time.monotonic())
                if len(pongs) == 1:
                    pongs.append(await runner.ping())
    pongs.append(await runner.ping())
    return times[1] - times[0], (times[-1] - times[1]) / answer, pongs


async def run(arguments: argparse.Namespace) -> None:
    context = arguments.prompt + arguments.answer + 8
    cuts = [int(each) for each in arguments.cuts.split(",")]
    for places in ([], cuts):
        async with loaded(arguments.model, places, arguments.layers, context) as runner:
            await measure(runner, 64, 8)
            prompt_s, token_s, pongs = await measure(runner, arguments.prompt, arguments.answer)
        print(f"{len(places) + 1} processes: prompt {prompt_s:.2f} s, {1e3 * token_s:.2f} ms a token")
        for kind, (before, after) in zip(("prompt", "answer"), itertools.pairwise(pongs), strict=True):
            for number, (old, new) in enumerate(zip(before.stages, after.stages, strict=True)):
                rows = max(new.rows - old.rows, 1)
                spent_us = (new.compute_us - old.compute_us) / rows
                sent = (new.sent_bytes - old.sent_bytes) / rows
                print(f"  {kind}, stage {number + 1}: {spent_us:.0f} us and {sent:.0f} bytes a token")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--cuts", required=True, help="layers that further processes begin with")
    parser.add_argument("--layers", type=int, required=True, help="layers of the model")
    parser.add_argument("--prompt", type=int, default=2000)
    parser.add_argument("--answer", type=int, default=64)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
