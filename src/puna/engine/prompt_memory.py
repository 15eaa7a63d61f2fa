"""What a model remembers of prompts, kept in a folder: saved when nobody waits, found again by itself.

With `PUNA_PROMPT_CACHE` a conversation goes on after its model was unloaded, or the machine restarted,
without being evaluated again. No request fails, or waits for the disk to be written, because of it.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from puna.config import find, home, path_of, setting
from puna.engine.prompt_folder import PromptFolder
from puna.engine.sequence import Generation, Sequence, marked
from puna.errors import PunaError
from puna.gguf import fingerprint
from puna.kvcache.cache import Saving
from puna.model.decoder import Decoder

if TYPE_CHECKING:
    from puna.engine.engine import Engine
    from puna.kvcache.saved import Saved
    from puna.model.adapters.adapters import Uses
    from puna.model.load import LoadedModel

log = logging.getLogger("puna.engine")

#: Shorter texts are evaluated sooner than they are read.
SHORTEST: Final = 256
#: Texts that wait to be saved; more are forgotten, the oldest first.
_MOST_UNSAVED: Final = 16
#: How long nothing must have ended before the first is saved.
_QUIET_S: Final = 0.3

#: How long is waited for a step to end. What takes longer (a TimeoutError, which is an OSError) is given up.
_PATIENCE_S: Final = 30.0

_GB = 10**9


@dataclass(eq=False)
class _Unsaved:
    tokens: list[int]
    adapters: Uses


class PromptMemory:
    """Saves what requests leave behind to a folder, and brings back what is there of a prompt."""

    def __init__(self, folder: PromptFolder, engine: Engine, settings: str) -> None:
        """`settings` is what the contents of the engine's cache depend on besides the model."""
        self._folder = folder
        self._loaded, self._cache = loaded, cache = engine.loaded, engine.cache
        self._prefix_cache = engine.prefix_cache
        self._ask = engine.ask
        self._identity = f"{_identity(loaded, cache.context)} {settings}"
        self._unsaved: list[_Unsaved] = []
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="puna-prompts", daemon=True)
        self._thread.start()

    # --- on the engine's thread --------------------------------------------------------

    def released(self, sequence: Sequence) -> None:
        """A sequence has left what it evaluated in the prefix cache."""
        tokens = [key for key in sequence.keys if isinstance(key, int)]
        if not sequence.generates or len(tokens) < max(SHORTEST, len(sequence.keys)):
            return  # parts of images would have to be saved, too
        left = _Unsaved(tokens, sequence.adapters)
        with self._changed:
            others = (each for each in self._unsaved if not _continues(left, each))
            self._unsaved = [*others, left][-_MOST_UNSAVED:]
            self._changed.notify()

    def _snapshot(self, left: _Unsaved) -> tuple[Saved, list[int]] | None:
        """What is still remembered of a text, and how much of it that is of; None if too little, or more."""
        keys = marked([*left.tokens], left.adapters)
        found = self._prefix_cache.find(keys, len(keys))
        if found.entry is None or found.entry.running or found.count < SHORTEST:
            return None
        if found.entry.evaluated != found.count or not isinstance(self._cache, Saving):
            return None
        return self._cache.save(found.entry.row), left.tokens[: found.count]

    # --- on the threads of requests ------------------------------------------------------

    def recall(self, sequences: Collection[Sequence]) -> None:
        """Bring back the most that is in the folder of what is to be evaluated, unless it is remembered."""
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
        """Save what has not been, as far as that takes no longer. The engine must still run."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (left := self._next()) is not None:
            try:
                found = self._ask(partial(self._snapshot, left)).result(_PATIENCE_S)
                if found is not None:
                    self._folder.write(self._space(left.adapters), *found)
            except (PunaError, OSError) as error:
                log.debug("a prompt is not saved: %s", error)
            except Exception:  # a defect, which must cost no more than the speed
                log.exception("a prompt could not be saved")

    def _next(self) -> _Unsaved | None:
        """What to save next, the newest first, once nothing more has ended for a moment; None: the end."""
        with self._changed:
            while not self._closing and (not self._unsaved or self._changed.wait(_QUIET_S)):
                if not self._unsaved:
                    self._changed.wait()
            return self._unsaved.pop() if self._unsaved else None

    def _space(self, adapters: Uses) -> str:
        own = self._loaded.adapters.identity(adapters) if self._loaded.adapters is not None else ""
        return hashlib.sha256(f"{self._identity}\n{own}".encode()).hexdigest()[:24]


def prompt_folder() -> PromptFolder | None:
    """The folder of `PUNA_PROMPT_CACHE`, as large as `PUNA_PROMPT_CACHE_GB` says; None: nothing is kept."""
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
    """What of a model decides what it makes of a text, to the bit."""
    status = loaded.path.stat()
    rotations = hashlib.sha256()
    if isinstance(loaded.model, Decoder):
        for rope in loaded.model.layer_ropes(context):  # which may be others where sequences are longer
            rotations.update(
                b"" if rope is None else rope.frequencies.tobytes() + repr(rope.magnitude).encode()
            )
    return (
        f"{fingerprint(loaded.path)} {status.st_size} {status.st_mtime_ns} {rotations.hexdigest()} "
        f"{loaded.ops.kernels}"
    )


def _continues(text: _Unsaved, other: _Unsaved) -> bool:
    return text.adapters == other.adapters and text.tokens[: len(other.tokens)] == other.tokens


def _note_failure(done: Future[Any]) -> None:
    if (error := done.exception()) is not None:
        log.debug("a saved prompt cannot be restored: %s", error)
