"""`python -m tests.soak`: the command behind `make soak`."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.soak.soak import ALL_ATTACKS, SoakError, soak


def say(line: str) -> None:
    print(time.strftime("%H:%M:%S"), line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", description="Put a server under random load and faults for a while."
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=None, help="seed of a previous run to repeat")
    parser.add_argument(
        "--attacks",
        default="all",
        help=f"the attacks to run: all, none, or some of these with commas: {', '.join(ALL_ATTACKS)}",
    )
    parser.add_argument(
        "--canary", type=float, default=1.0, help="seconds within which the server must answer the canary"
    )
    given = parser.parse_args()
    named = {"all": list(ALL_ATTACKS), "none": []}
    attacks = named.get(given.attacks) or [name for name in given.attacks.split(",") if name in ALL_ATTACKS]
    seed = time.time_ns() % 1_000_000 if given.seed is None else given.seed
    folder = Path(tempfile.mkdtemp(prefix="puna-soak-"))
    try:
        soak(
            folder,
            seconds=given.minutes * 60,
            seed=seed,
            say=say,
            attacks=attacks,
            canary_s=given.canary,
        )
    except SoakError as error:
        sys.exit(f"{error}\n\nThe server's log is {folder}/server.log.")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
