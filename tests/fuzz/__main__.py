"""`python -m tests.fuzz`: the command behind `make fuzz`."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path

from tests.fuzz.case import names
from tests.fuzz.driver import Driver

#: Failures after which a target is skipped: they probably have one cause.
MAX_FAILURES = 5
#: Cases of a target between checks of the clock.
BATCH = 20


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Give every parser random hostile input for a while."
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="time for all targets together")
    parser.add_argument(
        "--target", choices=names(), action="append", help="fuzz only this target; may be repeated"
    )
    parser.add_argument("--seed", type=int, help="seed of the first case; random by default")
    parser.add_argument("--cases", type=int, help="number of cases per target, however long they take")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="folder for failed cases")
    given = parser.parse_args()
    first = time.time_ns() % 10**9 if given.seed is None else given.seed
    targets = given.target or names()
    end = time.monotonic() + 60 * given.minutes
    failed = 0
    for index, target in enumerate(targets):
        share = (end - time.monotonic()) / (len(targets) - index)
        failed += fuzz(target, first, share, given.cases, given.keep.resolve())
    sys.exit(1 if failed else 0)


def fuzz(target: str, first: int, seconds: float, cases: int | None, folder: Path) -> int:
    """Fuzz `target`, print each failed case, and return how many failed."""
    end = time.monotonic() + seconds
    failures = done = 0
    with Driver(target, folder) as driver:
        for seed in itertools.count(first):
            over = done >= cases if cases is not None else done % BATCH == 0 and time.monotonic() > end
            if over or failures == MAX_FAILURES:
                break
            done += 1
            if failure := driver.case(seed):
                failures += 1
                print(f"\n{failure}\n", flush=True)
    print(f"{target}: {done:,} cases from seed {first}, {failures} failed", flush=True)
    return failures


if __name__ == "__main__":
    main()
