"""A bounded folder of what models remember, which outlives their processes.

A file is what was remembered of one text (`puna.kvcache.saved`), with a checksum. Its name begins with a
digest of everything that the contents depend on, so a changed model, or other adapters, find nothing. Several
processes may use a folder: files appear whole, and whoever finds one gone does without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from puna.errors import CacheFileError
from puna.kvcache.saved import Saved, read_sequence, read_tokens, write_sequence

log = logging.getLogger("puna.engine")

#: Files of all models together: looking for a prompt takes time for each of its model's.
MOST_FILES: Final = 1024
#: What is left free on the disk, at least.
_LEFT_FREE: Final = 1 << 30
#: What a file may have beside its arrays.
_AROUND: Final = 1 << 24
#: Older unfinished files are of processes that were killed.
_UNFINISHED_S: Final = 3600

Tokens = NDArray[np.int32]


class PromptFolder:
    """Prompts that were saved under `path`, at most `limit` bytes of them, the newest."""

    def __init__(self, path: Path, limit: int) -> None:
        self.path = path
        self._limit = limit
        self._known: dict[str, Tokens] = {}  # by file name

    def longest(self, space: str, tokens: Tokens, *, whole: bool) -> tuple[int, str]:
        """How many first `tokens` a file of `space` has, and its name; (0, "") for none.

        If `whole`, all of a file's tokens must be among them.
        """
        best = 0, ""
        for name in self._names(space):
            known = self._tokens(name)
            count = common_prefix(known, tokens)
            if count > best[0] and not (whole and count < len(known)):
                best = count, name
        return best

    def read(self, space: str, name: str) -> tuple[Saved, list[int]] | None:
        """What file `name` has, which counts as new now; None if it is gone. A damaged one is deleted."""
        path = self.path / name
        try:
            found = read_sequence(path, model=space, checksum=True)
            os.utime(path)
        except CacheFileError as error:
            log.warning("%s; deleting it", error)
            self._delete(name)
        except OSError as error:
            log.debug("%s cannot be read: %s", path, error)
        else:
            return found
        return None

    def write(self, space: str, saved: Saved, tokens: Sequence[int]) -> None:
        """Add what was saved of `tokens`, in place of what is part of it. Raises `OSError`."""
        name = f"{space}-{hashlib.sha256(np.array(tokens, np.int32).tobytes()).hexdigest()[:24]}.prompt"
        path = self.path / name
        if path.exists():
            os.utime(path)
            return
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        size = sum(array.nbytes for array in saved.arrays.values())
        if size > self._limit or shutil.disk_usage(self.path).free < size + _LEFT_FREE:
            log.debug("%d bytes of a prompt find no place in %s", size, self.path)
            return
        self._make_room(size)
        write_sequence(saved, path, model=space, tokens=tokens, checksum=True)
        written = np.array(tokens, np.int32)
        for other in self._names(space):
            known = self._tokens(other)
            if other != name and len(known) < len(written) and common_prefix(known, written) == len(known):
                self._delete(other)

    def _names(self, space: str) -> list[str]:
        with contextlib.suppress(OSError), os.scandir(self.path) as entries:
            ours = (entry for entry in entries if _is_prompt(entry.name) and entry.name.startswith(space))
            return [entry.name for entry in ours if self._may_be_read(entry)]
        return []

    def _may_be_read(self, entry: os.DirEntry[str]) -> bool:
        """Nobody waits at a pipe, or reads what is larger than all files together may be."""
        with contextlib.suppress(OSError):  # it is gone
            return (
                entry.is_file(follow_symlinks=False)
                and entry.stat(follow_symlinks=False).st_size <= self._limit + _AROUND
            )
        return False

    def _tokens(self, name: str) -> Tokens:
        """Those of a file; none if it is gone or damaged."""
        found = self._known.get(name)  # other threads may look here, too
        if found is None:
            found = np.empty(0, np.int32)
            try:
                found = read_tokens(self.path / name)
            except OSError:
                return found
            except CacheFileError as error:
                log.warning("%s; deleting it", error)
                self._delete(name)
                return found
            if len(self._known) >= 2 * MOST_FILES:
                self._known.clear()
            self._known[name] = found
        return found

    def _make_room(self, size: int) -> None:
        """Delete the oldest files until `size` bytes more are within the bounds."""
        files = sorted(self._files(), key=lambda file: file[1], reverse=True)
        kept = size
        for number, (name, _, taken) in enumerate(files, 1):
            kept += taken
            if kept > self._limit or number >= MOST_FILES:
                self._delete(name)

    def _files(self) -> Iterator[tuple[str, float, int]]:
        """(name, when it was used, bytes)."""
        with os.scandir(self.path) as entries:
            for entry in entries:
                try:
                    found = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                if _is_prompt(entry.name):
                    yield entry.name, found.st_mtime, found.st_size
                elif entry.name.endswith(".unfinished") and time.time() - found.st_mtime > _UNFINISHED_S:
                    self._delete(entry.name)

    def _delete(self, name: str) -> None:
        self._known.pop(name, None)
        with contextlib.suppress(OSError):
            (self.path / name).unlink()


def common_prefix(one: Tokens, other: Tokens) -> int:
    """How many first tokens two texts have in common."""
    length = min(len(one), len(other))
    differing = np.flatnonzero(one[:length] != other[:length])
    return int(differing[0]) if len(differing) else length


def _is_prompt(name: str) -> bool:
    return name.endswith(".prompt")
