"""`python -m tests.fuzz`: the command that `make fuzz` runs."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path

from tests.fuzz.case import names
from tests.fuzz.driver import Driver

#: After so many a target is left alone: they are likely to be one mistake.
MAX_FAILURES = 5
#: Cases of a target between looks at the clock.
BATCH = 20


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Give every parser random hostile input for a while."
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="for all targets together")
    parser.add_argument("--target", choices=names(), action="append", help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, help="of the first case; random if missing")
    parser.add_argument("--cases", type=int, help="as many of each target, however long they take")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="where failed cases are kept")
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
    """The number of cases that failed; says which."""
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
