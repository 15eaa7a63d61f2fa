"""Interface of audio towers of models that chat, and how a recording's rows are placed in a prompt.

A recording is read in windows of about half a minute. Each is an `Image` of the input stream: encoded when
its text is reached, and not held together with the others.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from puna.audio.mel import HOP
from puna.audio.options import AudioOptions
from puna.audio.recording import Recording
from puna.batch import Image, Input
from puna.nn.module import Module
from puna.ops import Array
from puna.vision.layers.attention import PatchKeys, Slices
from puna.vision.tower import kept_together, marker, rows_of

if TYPE_CHECKING:
    from puna.gguf import GGUFFile
    from puna.tokenizer import Tokenizer

_SAMPLE_BYTES: Final = 2


@dataclass(frozen=True, eq=False)
class AudioWindow:
    """The frames of a recording from `begin` on that are read at once, as `rows` for the text model."""

    features: Any  # in the form the tower reads, with windows of `length` frames of 10 ms
    begin: int
    rows: int

    @property
    def nbytes(self) -> int:
        """The bytes of its samples."""
        return int(self.features.length) * HOP * _SAMPLE_BYTES


class AudioTower(Module):
    """Audio tower: turns windows of recordings into rows for the text model. One subclass per kind.

    `prepare` and `place` may be called from any thread.
    """

    options: AudioOptions
    #: Spellings of the tokens before and after a recording; "" for none.
    begins: ClassVar[str] = ""
    ends: ClassVar[str] = ""
    #: Names of tensors that files have for other uses.
    unread: ClassVar[tuple[str, ...]] = ()

    #: Inputs of a window that must share a batch.
    largest_group: Final = 1
    #: Keys of the window being read.
    keys: PatchKeys

    @classmethod
    @abstractmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> AudioOptions:
        """Read the tower's options from its file's metadata. Raises `ModelError` for invalid ones.

        Each row it makes has `text_size` values.
        """

    def use(self, tokenizer: Tokenizer) -> None:
        """Look up the tokens around recordings. Raises `ModelError` for one the vocabulary lacks."""
        self._before, self._after = (
            [Input(marker(tokenizer, spelling, "recordings"))] if spelling else []
            for spelling in (self.begins, self.ends)
        )

    @abstractmethod
    def prepare(self, recording: Recording) -> list[AudioWindow]:
        """Return the windows of a recording, in order. Uses the options but no weights."""

    @abstractmethod
    def encode(self, window: AudioWindow, slice_rows: int) -> Slices[Array]:
        """Return float32 [rows, text_size] of a window, reading `slice_rows` frames or states per slice."""

    def place(self, windows: Sequence[Image]) -> list[Input]:
        """Return the prompt inputs of a recording: the rows of its windows, and the tokens around them."""
        rows = [row for window in windows for row in rows_of(window)]
        return kept_together([*self._before, *rows, *self._after], one_batch=False)

    @abstractmethod
    def memory_bytes(self, slice_rows: int) -> int:
        """Return the memory that reading a window takes at once, besides the weights."""
