"""The command line: `puna run`, `puna serve` and the others."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status; `arguments` default to those of the process."""
    from puna.cli.entry import run

    return run(arguments)
