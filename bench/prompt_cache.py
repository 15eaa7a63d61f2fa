"""Measure the time to continue a conversation after a restart, with its prompt cached on disk.

    python bench/prompt_cache.py [--model 135m/q8_0] [--tokens 4000]

Prints the seconds from the request to its first token: once with the conversation evaluated, and once in a
fresh process that reads it from `PUNA_PROMPT_CACHE`. Loading the model is not counted.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from models import random_model


def first_token(path: Path, tokens: int) -> None:
    """Print the seconds to the first token, and the number of cached tokens."""
    import puna

    prompt = [3 + number * 7919 % 40_000 for number in range(tokens)]
    with puna.load(path, num_ctx=tokens + 64, parallel=1) as model:
        model.generate([5] * 32, num_predict=1)
        began = time.perf_counter()
        answer = model.generate(prompt, num_predict=1, ignore_eos=True)
        print(time.perf_counter() - began, answer.cached_tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="135m/q8_0", help="SHAPE/MIX as in bench/models.py")
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        first_token(given.measure, given.tokens)
        return
    path = random_model(*given.model.split("/"))
    command = [sys.executable, __file__, "--measure", str(path), "--tokens", str(given.tokens)]
    with tempfile.TemporaryDirectory() as folder:
        times = []
        for kind in ("evaluated", "from disk"):
            env = os.environ | {"PUNA_PROMPT_CACHE": folder}
            done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
            seconds, cached = done.stdout.split()
            times.append(float(seconds))
            print(f"{kind:<10} {times[-1]:7.3f} s to the first token, {cached} of {given.tokens} cached")
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
    print(f"{times[0] / times[1]:.1f} times faster, with a file of {size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
