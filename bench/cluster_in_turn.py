"""Run `puna` with replicas that take turns, for bench/cluster_replicas.py."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any, Final

from puna.cli import main
from puna.cluster.router import Route, Router

_TURNS: Final = itertools.count()
_route = Router.route


def in_turn(self: Router, digests: Sequence[int], tokens: int, **more: Any) -> Route | None:
    """Leave `Router.route` no choice but the next replica."""
    names = sorted(self._replicas)
    turn = next(_TURNS) if tokens else 0  # prompts are rendered first, which takes none
    others = [name for number, name in enumerate(names) if number != turn % len(names)]
    return _route(self, digests, tokens, exclude=others, **more)


Router.route = in_turn  # type: ignore[method-assign,assignment]

if __name__ == "__main__":
    sys.exit(main())
