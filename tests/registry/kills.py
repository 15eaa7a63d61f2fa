"""Operations on a store to be killed, each in a process of its own that starts within milliseconds."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from puna.registry import download, upload
from puna.registry.pull import pull
from puna.registry.push import push
from puna.store import ModelSpec, Store

#: Forks processes from a server that has imported everything and has no threads.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.registry.kills"])

#: Bytes fetched or sent at once: small, so that there are many moments to kill at.
_PIECE = 50_000


def pulling(root: Path, name: str) -> None:
    download.MIN_PART = _PIECE
    pull(Store(root), name, _silent, insecure=True)


def pushing(root: Path, name: str) -> None:
    upload.PIECE = _PIECE
    push(Store(root), name, _silent, insecure=True)


def creating(root: Path, file: Path, number: int) -> None:
    """Upload a file, as clients do, and create a model from it, with a system text naming `number`."""
    store = Store(root)
    digest = store.import_file(file)
    spec = ModelSpec(
        files={"model.gguf": digest}, template="{{ .Prompt }}", system=f"You are number {number}."
    )
    store.create("created", spec)


def nothing() -> None:
    """Do nothing; the first process runs this, so that importing does not count."""


def _silent(_: object) -> None:
    pass


def killed(chance: random.Random, longest_s: float, work: Callable[..., None], *given: Any) -> bool:
    """Run `work` and kill it after a random time; return whether it was killed before finishing."""
    process = _CONTEXT.Process(target=work, args=given)
    process.start()
    process.join(chance.uniform(0, longest_s))
    process.kill()
    process.join()
    code = process.exitcode
    process.close()
    assert code in (0, -9), f"{work.__name__} ended with status {code}"
    return code != 0


def seconds(work: Callable[..., None], *given: Any) -> float:
    """Return how long `work` takes when nobody kills it."""
    process = _CONTEXT.Process(target=work, args=given)
    begun = time.monotonic()
    process.start()
    process.join()
    assert process.exitcode == 0
    return time.monotonic() - begun
