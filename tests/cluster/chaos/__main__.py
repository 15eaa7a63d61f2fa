"""`python -m tests.cluster.chaos`: the command behind `make test-cluster`."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.cluster.chaos.chaos import chaos
from tests.soak.__main__ import say
from tests.soak.soak import SoakError


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster.chaos",
        description="Use a cluster on this machine while its nodes fail, leave and come.",
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="seed of a previous run to repeat")
    given = parser.parse_args()
    seed = time.time_ns() % 1_000_000 if given.seed is None else given.seed
    folder = Path(tempfile.mkdtemp(prefix="puna-chaos-"))
    try:
        chaos(folder, seconds=given.minutes * 60, seed=seed, say=say)
    except SoakError as error:
        sys.exit(f"{error}\n\nThe logs are in {folder}.")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
