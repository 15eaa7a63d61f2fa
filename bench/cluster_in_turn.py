"""Run `puna` with replicas that take turns, for bench/cluster_replicas.py."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Sequence
from typing import Final

from puna.cli import main
from puna.cluster.router import Route, Router

_TURNS: Final = itertools.count()


def in_turn(
    self: Router,
    digests: Sequence[int],
    tokens: int,
    *,
    now_s: float,
    kernels: str | None = None,
    exclude: Collection[str] = (),
) -> Route | None:
    """Choose the next replica; see `Router.route`."""
    names = sorted(name for name in self._replicas if name not in exclude)
    if not names:
        return None
    # Prompts are rendered first, which takes no turn.
    chosen = names[(next(_TURNS) if tokens else 0) % len(names)]
    return Route(chosen, self._replicas[chosen].kernels, 0, 0.0, tokens, digests)


Router.route = in_turn  # type: ignore[method-assign]

if __name__ == "__main__":
    sys.exit(main())
