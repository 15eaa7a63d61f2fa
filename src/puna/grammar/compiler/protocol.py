"""Messages between the engine and its grammar processes: frames of msgpack.

The root process has the model's vocabulary; a fork of it compiles a format; each fork of that follows one
answer. The limits are here because both sides name them.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from puna.chat.answers.family import Reading
from puna.errors import RequestError
from puna.grammar.format import Format

#: Processor time that compiling a format may take.
COMPILE_S: Final = 2.0
#: Processor time that the steps of one answer may take together, without those that are quick.
FOLLOW_S: Final = 10.0
QUICK_S: Final = 0.01
#: Memory that compiling a format may take beside the vocabulary, and each answer beside its format.
MEMORY_BYTES: Final = 512 << 20

#: No reply is longer.
MAX_REPLY_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class FormatTask:
    """The form that answers must have, without details of the request that do not affect it."""

    format: Format | None
    reading: Reading | None

    @classmethod
    def of(cls, format: Format | None, reading: Reading | None) -> FormatTask | None:
        """Return None where an answer may be any text."""
        if reading is None:
            return None if format is None else cls(format, None)
        if reading.forces_calls:
            plain = replace(reading, prompt="", begins_thinking=reading.begun, streams_calls=False)
            return cls(None, replace(plain, thinking=reading.allowed_thinking, asked=True))
        if format is None:
            return None
        return cls(format, Reading(reading.family, reading.allowed_thinking, begins_thinking=reading.begun))

    @classmethod
    def pickled_of(cls, format: Format | None, reading: Reading | None) -> bytes | None:
        """Return `of`, serialised for the other side, which trusts this one. Raises `RequestError`."""
        task = cls.of(format, reading)
        try:
            return None if task is None else pickle.dumps(task)
        except RecursionError:
            raise RequestError("format: it is nested too deeply") from None


class _Message(msgspec.Struct, tag=True, frozen=True):
    pass


class OpenVocabulary(_Message, frozen=True):
    """Read the vocabulary of the model at `path`: the first message to the root process."""

    path: str


class Fork(_Message, frozen=True):
    """Fork. The new process uses the socket that comes with this message. Not answered."""

    number: int


class End(_Message, frozen=True):
    """Kill the fork with that number. Not answered."""

    number: int


class Compile(_Message, frozen=True):
    """Compile a pickled `FormatTask`. Answered by `Compiled`, or `CompilerFailure`."""

    task: bytes


class Begin(_Message, frozen=True):
    """Begin an answer that may take `seconds` of processor time. Answered by `Followed` and `Masks`."""

    seconds: float


class Follow(_Message, frozen=True):
    """Follow a token that was drawn. Answered by `Followed`, and by `Masks` if wanted and more can come.

    If `instead` is given, that is followed where the token could stand.
    """

    token: int
    mask: bool
    instead: int | None = None


class LookAhead(_Message, frozen=True):
    """Compute the masks after each of these tokens. Answered by `Masks`."""

    drafts: list[int]


class CompilerReady(_Message, frozen=True):
    """The root process has read the vocabulary."""


class Compiled(_Message, frozen=True):
    """The format is compiled, and takes that much memory."""

    size_bytes: int


class Followed(_Message, frozen=True):
    """`taken` is False for a token that cannot stand after all; `forced` must come next."""

    taken: bool
    answering: bool
    finished: bool
    forced: list[int]


class Masks(_Message, frozen=True):
    """Masks [rows, words] of the next token, or of those after each drafted token that can stand."""

    rows: bytes
    seconds: float


class CompilerFailure(_Message, frozen=True):
    """`kind` is a class of `puna.errors`."""

    kind: str
    message: str


class Ended(_Message, frozen=True):
    """A report from its parent that the process has ended. A signal's number is negative."""

    status: int


ToProcess = OpenVocabulary | Fork | End | Compile | Begin | Follow | LookAhead
FromProcess = CompilerReady | Compiled | Followed | Masks | CompilerFailure | Ended
