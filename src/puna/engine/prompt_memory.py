"""Prompts on disk: saved to a bounded folder while the engine is idle, and restored for later requests."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from puna.config import find, home, path_of, setting
from puna.engine.prefix_cache import PrefixCache
from puna.engine.sequence import Generation, Sequence, marked
from puna.errors import CacheFileError, PunaError
from puna.gguf import fingerprint
from puna.kvcache.cache import Cache, Saving
from puna.kvcache.saved import Saved, read_sequence, read_tokens, write_sequence
from puna.model.adapters.adapters import Uses
from puna.model.decoder import Decoder
from puna.model.divided import DividedModel
from puna.model.load import LoadedModel

log = logging.getLogger("puna.engine")

#: Maximum files of all models together: a search takes time for each file of the model.
MAX_FILES: Final = 1024
#: Minimum bytes to leave free on the disk.
_LEFT_FREE: Final = 1 << 30
#: Maximum bytes of a file beside its arrays.
_AROUND: Final = 1 << 24
#: Unfinished files older than this were left by killed processes.
_UNFINISHED_S: Final = 3600

#: Shorter prompts are faster to evaluate than to read.
SHORTEST: Final = 256
#: Maximum prompts waiting to be saved; the oldest are forgotten first.
_MAX_UNSAVED: Final = 16
#: How long no request must have ended before the first prompt is saved.
_QUIET_S: Final = 0.3

#: How long to wait for a step to end; then the operation is given up (TimeoutError, which is an OSError).
_PATIENCE_S: Final = 30.0

_GB = 10**9

Tokens = NDArray[np.int32]

_T = TypeVar("_T")


class PromptFolder:
    """The newest saved prompts in the folder `path`, at most `limit` bytes."""

    def __init__(self, path: Path, limit: int) -> None:
        self.path = path
        self._limit = limit
        self._known: dict[str, Tokens] = {}  # by file name

    def longest(self, space: str, tokens: Tokens, *, whole: bool) -> tuple[int, str]:
        """Return the length and file name of the longest saved prefix of `tokens`; (0, "") without any.

        Only files of `space` count. If `whole`, all tokens of a file must match.
        """
        best = 0, ""
        for name in self._names(space):
            known = self._tokens(name)
            count = common_prefix(known, tokens)
            if count > best[0] and not (whole and count < len(known)):
                best = count, name
        return best

    def read(self, space: str, name: str) -> tuple[Saved, list[int]] | None:
        """Return the contents of file `name` and mark it as used; None if it is gone or damaged."""
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

    def write(self, space: str, saved: Saved, tokens: list[int]) -> None:
        """Add the saved sequence of `tokens`, and delete files of its prefixes. Raises `OSError`."""
        name = f"{space}-{hashlib.sha256(np.array(tokens, np.int32).tobytes()).hexdigest()[:24]}.prompt"
        path = self.path / name
        if path.exists():
            os.utime(path)
            return
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        size = sum(array.nbytes for array in saved.arrays.values())
        if size > self._limit or shutil.disk_usage(self.path).free < size + _LEFT_FREE:
            log.debug("no room for %d bytes of a prompt in %s", size, self.path)
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
        """Whether a file is regular, not a pipe to wait for, and no larger than the limit of the folder."""
        with contextlib.suppress(OSError):  # the file is gone
            return (
                entry.is_file(follow_symlinks=False)
                and entry.stat(follow_symlinks=False).st_size <= self._limit + _AROUND
            )
        return False

    def _tokens(self, name: str) -> Tokens:
        """Return the tokens of a file; empty if it is gone or damaged."""
        found = self._known.get(name)  # other threads may use `_known` too
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
            if len(self._known) >= 2 * MAX_FILES:
                self._known.clear()
            self._known[name] = found
        return found

    def _make_room(self, size: int) -> None:
        """Delete the oldest files until `size` more bytes are within the limits."""
        files = sorted(self._files(), key=lambda file: file[1], reverse=True)
        kept = size
        for number, (name, _, taken) in enumerate(files, 1):
            kept += taken
            if kept > self._limit or number >= MAX_FILES:
                self._delete(name)

    def _files(self) -> Iterator[tuple[str, float, int]]:
        """Yield each file as (name, time of last use, bytes); delete old unfinished files."""
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
    """Return how many leading tokens two texts share."""
    length = min(len(one), len(other))
    differing = np.flatnonzero(one[:length] != other[:length])
    return int(differing[0]) if len(differing) else length


def _is_prompt(name: str) -> bool:
    return name.endswith(".prompt")


class Ask(Protocol):
    """The type of `Engine.ask`, which calls a function between two steps."""

    def __call__(self, function: Callable[[], _T], /) -> Future[_T]: ...


@dataclass(eq=False)
class _Unsaved:
    tokens: list[int]
    adapters: Uses


class PromptMemory:
    """Saves prompts of finished requests to a folder, and restores them for later requests."""

    def __init__(
        self,
        folder: PromptFolder,
        loaded: LoadedModel,
        cache: Cache,
        prefix_cache: PrefixCache,
        ask: Ask,
        *,
        settings: str,
    ) -> None:
        """`settings` identifies everything but the model that the contents of `cache` depend on."""
        self._folder = folder
        self._loaded = loaded
        self._cache = cache
        self._prefix_cache = prefix_cache
        self._ask = ask
        self._identity = f"{_identity(loaded, cache.context)} {settings}"
        self._unsaved: list[_Unsaved] = []
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="puna-prompts", daemon=True)
        self._thread.start()

    # --- on the engine's thread --------------------------------------------------------

    def released(self, sequence: Sequence) -> None:
        """Queue a sequence that the prefix cache has just taken over, to be saved."""
        tokens = [key for key in sequence.keys if isinstance(key, int)]
        if not sequence.generates or len(tokens) < max(SHORTEST, len(sequence.keys)):
            return  # too short, or with images, whose parts would have to be saved too
        left = _Unsaved(tokens, sequence.adapters)
        with self._changed:
            others = (each for each in self._unsaved if not _continues(left, each))
            self._unsaved = [*others, left][-_MAX_UNSAVED:]
            self._changed.notify()

    def _snapshot(self, left: _Unsaved) -> tuple[Saved, list[int]] | None:
        """Return a copy of an idle entry of a prompt, and its tokens; None if it has too little, or more."""
        keys = marked([*left.tokens], left.adapters)
        found = self._prefix_cache.find(keys, len(keys))
        if found.entry is None or found.entry.running or found.count < SHORTEST:
            return None
        if found.entry.evaluated != found.count or not isinstance(self._cache, Saving):
            return None
        return self._cache.save(found.entry.row), left.tokens[: found.count]

    # --- on the threads of requests ------------------------------------------------------

    def recall(self, sequences: Collection[Sequence]) -> None:
        """Restore the longest saved prefix of new sequences, unless the prefix cache has it."""
        sequence = next(iter(sequences), None)
        if (
            not isinstance(sequence, Generation)
            or not sequence.request.cache_prompt
            or sequence.evaluates_all
        ):
            return
        try:
            self._recall(sequence)
        except (PunaError, OSError) as error:
            log.debug("a saved prompt is not used: %s", error)

    def _recall(self, sequence: Sequence) -> None:
        if len(sequence.keys) <= SHORTEST or not all(isinstance(key, int) for key in sequence.keys):
            return
        tokens = np.array(sequence.keys, np.int32)
        space = self._space(sequence.adapters)
        count, name = self._folder.longest(space, tokens, whole=self._cache.forgets)
        if count < SHORTEST:
            return
        keys = sequence.cached_as
        known = self._ask(lambda: self._prefix_cache.find(keys, len(keys))).result(_PATIENCE_S)
        if count - max(known.count, known.pending_count) < SHORTEST:
            return
        if (found := self._folder.read(space, name)) is None:
            return
        saved, read = found
        restored = self._ask(
            partial(self._prefix_cache.restore, saved, marked(list(read), sequence.adapters))
        )
        restored.add_done_callback(_note_failure)

    # --- on its own thread ---------------------------------------------------------------

    def close(self, timeout_s: float) -> None:
        """Save the remaining prompts, for at most `timeout_s`. The engine must still run."""
        deadline = time.monotonic() + timeout_s
        with contextlib.suppress(PunaError, TimeoutError):
            self._ask(lambda: None).result(timeout_s)  # the step that sent an answer's end queues its prompt
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(max(deadline - time.monotonic(), 0))

    def _run(self) -> None:
        while (left := self._next()) is not None:
            try:
                found = self._ask(partial(self._snapshot, left)).result(_PATIENCE_S)
                if found is not None:
                    self._folder.write(self._space(left.adapters), *found)
            except (PunaError, OSError) as error:
                log.debug("a prompt is not saved: %s", error)
            except Exception:  # a defect, which must cost no more than speed
                log.exception("a prompt could not be saved")

    def _next(self) -> _Unsaved | None:
        """Wait until no request has ended for a moment, and return the newest prompt; None to stop."""
        with self._changed:
            while not self._closing and (not self._unsaved or self._changed.wait(_QUIET_S)):
                if not self._unsaved:
                    self._changed.wait()
            return self._unsaved.pop() if self._unsaved else None

    def _space(self, adapters: Uses) -> str:
        own = self._loaded.adapters.identity(adapters) if self._loaded.adapters is not None else ""
        return hashlib.sha256(f"{self._identity}\n{own}".encode()).hexdigest()[:24]


def prompt_folder() -> PromptFolder | None:
    """Return the folder set by `PUNA_PROMPT_CACHE` and `PUNA_PROMPT_CACHE_GB`; None if it is off."""
    text = find("PROMPT_CACHE")[1]
    if not text or text.lower() in ("0", "off", "no", "false"):
        return None
    usual = text.lower() in ("1", "on", "yes", "true")
    path = home() / "prompts" if usual else path_of(text)
    return PromptFolder(path, int(setting("PROMPT_CACHE_GB", _positive, 10.0) * _GB))


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("must be a number of gigabytes") from None
    if not 0 < value < 1e6:
        raise ValueError("must be above 0, and below a million")
    return value


def _identity(loaded: LoadedModel, context: int) -> str:
    """Return a text that identifies everything in a model that affects its states, to the bit."""
    status = loaded.path.stat()
    rotations = hashlib.sha256()
    if isinstance(loaded.model, Decoder | DividedModel):  # a split model's prompts are not saved
        for rope in loaded.model.layer_ropes(context):  # they may depend on the context
            rotations.update(
                b"" if rope is None else rope.frequencies.tobytes() + repr(rope.magnitude).encode()
            )
    return (
        f"{fingerprint(loaded.path)} {status.st_size} {status.st_mtime_ns} {rotations.hexdigest()} "
        f"{loaded.kernels}"
    )


def _continues(text: _Unsaved, other: _Unsaved) -> bool:
    return text.adapters == other.adapters and text.tokens[: len(other.tokens)] == other.tokens


def _note_failure(done: Future[Any]) -> None:
    if (error := done.exception()) is not None:
        log.debug("a saved prompt cannot be restored: %s", error)
