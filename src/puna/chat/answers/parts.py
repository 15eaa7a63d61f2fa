"""What an answer is made of, once its markup has been read."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True)
class ParameterForm:
    """`key` NAME `after_key` VALUE `closing`, a parameter after the other.

    A string is written as it is between `quotes`, or as JSON if there are none; what is no string is JSON.
    """

    key: str
    after_key: str
    closing: str = ""
    quotes: tuple[str, str] | None = None
    between: str = ""
    untyped: bool = False  # what is no string is told from one by the tool's schema alone


@dataclass(frozen=True)
class Form:
    """`begin`, calls with `between` between them, `end`; a call is `before` NAME `after` ARGUMENTS `closing`.

    Arguments are a JSON object, unless `parameters` says how they are written.
    """

    before: str
    after: str
    closing: str = ""
    begin: str = ""
    end: str = ""
    between: str = ""
    lead: str = ""  # that may come before all of it
    most: int = 0  # calls; 0: any number
    parameters: ParameterForm | None = None
    said: str = ""  # before what is said instead


class CallDelta(msgspec.Struct, frozen=True):
    """More of a tool call. All deltas of one call come before those of the next."""

    index: int  # of the call within the answer, from 0
    id: str = ""  # in the call's first delta only, as is the name
    name: str = ""
    arguments: str = ""  # more of the JSON text of its arguments, which are an object


@dataclass(frozen=True, slots=True)
class Thought:
    """More of what the model thinks."""

    text: str


@dataclass(frozen=True, slots=True)
class Said:
    """More of what the model says."""

    text: str


Part = Thought | Said | CallDelta


@dataclass(frozen=True, slots=True)
class Tags:
    """The texts around thinking, such as `<think>` and `</think>`."""

    opening: str
    closing: str
