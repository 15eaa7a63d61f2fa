"""Messages between grammar processes and the engine that owns them: frames of msgpack.

One kind of process answers them all. The first has the model's vocabulary; a fork of it compiles a format;
forks of that follow an answer each. Limits are here, because both sides name them.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from puna import confined
from puna.errors import RequestError
from puna.grammar.format import Format
from puna.markup.family import Reading

#: Processor time that compiling a format may take.
COMPILE_S: Final = 2.0
#: Processor time that the steps of one answer may take together; quick ones do not count.
FOLLOW_S: Final = 10.0
QUICK_S: Final = 0.01
#: Memory that a format may take, beyond that of the vocabulary, and each answer beyond its format.
MEMORY_BYTES: Final = 512 << 20

#: A reply that is longer does not come from our own code.
MAX_REPLY_BYTES: Final = 64 << 20

_encoder = msgspec.msgpack.Encoder()


@dataclass(frozen=True)
class Task:
    """What an answer must be like, without what differs between requests and does not matter for it."""

    format: Format | None
    reading: Reading | None

    @classmethod
    def of(cls, format: Format | None, reading: Reading | None) -> Task | None:
        """None where an answer may be anything."""
        if reading is None:
            return None if format is None else cls(format, None)
        tags = reading.thinking
        begun = tags is not None and reading.prompt.rstrip().endswith(tags.opening)
        prompt = tags.opening if tags is not None and begun else ""
        if reading.forces_calls:
            return cls(None, replace(reading, prompt=prompt))
        return None if format is None else cls(format, Reading(reading.family, tags, prompt))

    def pickled(self) -> bytes:
        """For the other side, which trusts this one; equal for equal tasks. Raises `RequestError`."""
        try:
            return pickle.dumps(self)
        except RecursionError:
            raise RequestError("format: it is nested too deeply") from None


class _Message(msgspec.Struct, tag=True, frozen=True):
    pass


class Open(_Message, frozen=True):
    """The first message to the first process: where the model's vocabulary is."""

    path: str


class Fork(_Message, frozen=True):
    """Become two. The new process answers on the socket that comes with this message. Not answered."""

    number: int


class End(_Message, frozen=True):
    """End the fork of that number. Not answered."""

    number: int


class Compile(_Message, frozen=True):
    """Compile a pickled `Task`. Answered by `Compiled`, or `Failed`."""

    task: bytes


class Begin(_Message, frozen=True):
    """An answer begins. Answered by `Followed` and `Masks`."""


class Follow(_Message, frozen=True):
    """A token was drawn. Answered by `Followed`, and by `Masks` if wanted and more is to come."""

    token: int
    mask: bool


class Look(_Message, frozen=True):
    """Say what may come after each of these tokens. Answered by `Masks`."""

    drafts: list[int]


class Ready(_Message, frozen=True):
    """The first process has read the vocabulary."""


class Compiled(_Message, frozen=True):
    pass


class Followed(_Message, frozen=True):
    """`taken` is False for a token that cannot stand after all; `forced` must come next."""

    taken: bool
    answering: bool
    finished: bool
    forced: list[int]


class Masks(_Message, frozen=True):
    """The tokens that may come next, or after each drafted token as far as these can stand: [rows, words]."""

    rows: bytes
    seconds: float


class Failed(_Message, frozen=True):
    """`kind` is a class of `puna.errors`."""

    kind: str
    message: str


class Ended(_Message, frozen=True):
    """The process has ended; it is said by the one that it was a fork of. A signal's number is negative."""

    status: int


ToProcess = Open | Fork | End | Compile | Begin | Follow | Look
FromProcess = Ready | Compiled | Followed | Masks | Failed | Ended


def packed(message: ToProcess | FromProcess) -> bytes:
    return confined.packed(_encoder.encode(message))
