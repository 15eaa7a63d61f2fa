"""`python -m tests.soak`: the command that `make soak` runs."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.soak.soak import SoakError, soak


def say(line: str) -> None:
    print(time.strftime("%H:%M:%S"), line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", description="Put a server under random load and faults for a while."
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=None, help="seed of an earlier run, to repeat it")
    given = parser.parse_args()
    seed = time.time_ns() % 1_000_000 if given.seed is None else given.seed
    folder = Path(tempfile.mkdtemp(prefix="puna-soak-"))
    try:
        soak(folder, seconds=given.minutes * 60, seed=seed, say=say)
    except SoakError as error:
        sys.exit(f"{error}\n\nThe server's log is {folder}/server.log.")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
