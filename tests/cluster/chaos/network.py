"""A network between this machine and a namespace of it, which can be cut: packets get lost without a word."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from tests.waiting import PATIENCE_S

#: No network card has this address.
_NOBODY = "02:00:00:00:00:00"


@dataclass(frozen=True)
class Network:
    """Addresses of the head and of a worker in the namespace `name`."""

    name: str
    head: str
    worker: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """The begin of a command that runs in the namespace."""
        return ("ip", "netns", "exec", self.name)

    def cut(self) -> None:
        """Lose all packets from now on."""
        for ends in self._ends:
            _ip(*ends, "lladdr", _NOBODY, "nud", "permanent", before=("neigh", "replace"))

    def heal(self) -> None:
        """Let packets through again."""
        for ends in self._ends:
            _ip(*ends, before=("neigh", "del"))

    @property
    def _ends(self) -> list[tuple[str, ...]]:
        return [
            (self.worker, "dev", f"{self.name}h"),
            ("-n", self.name, self.head, "dev", f"{self.name}w"),
        ]


def _ip(*words: str, before: tuple[str, ...] = ()) -> None:
    """Run `ip`, whose options come first."""
    options, rest = (words[:2], words[2:]) if words[:1] == ("-n",) else ((), words)
    command = ["ip", *options, *before, *rest]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)


@contextlib.contextmanager
def network() -> Iterator[Network | None]:
    """Make a network for the length of the block; None where that is not allowed."""
    number = os.getpid() % (1 << 14)
    subnet = f"10.{192 + number // 4096 * 16 + number // 256 % 16}.{number % 256}"
    made = Network(f"puna{number}", f"{subnet}.1", f"{subnet}.2")
    with contextlib.ExitStack() as stack:
        try:
            _ip("netns", "add", made.name)
            stack.callback(_ip, "netns", "del", made.name)  # and the devices with it
            ends = (f"{made.name}h", f"{made.name}w")
            _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1], "netns", made.name)
            _ip("addr", "add", f"{made.head}/30", "dev", ends[0])
            _ip("link", "set", ends[0], "up")
            for words in (
                ("addr", "add", f"{made.worker}/30", "dev", ends[1]),
                ("link", "set", ends[1], "up"),
                ("link", "set", "lo", "up"),
            ):
                _ip("-n", made.name, *words)
        except (OSError, subprocess.SubprocessError):
            yield None
            return
        yield made
