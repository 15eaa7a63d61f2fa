"""Parts of an answer whose markup has been read, and the forms in which calls are written."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True)
class ParameterForm:
    """`key` NAME `after_key` VALUE `closing` for each parameter.

    Strings are written verbatim between `quotes`, or as JSON if there are none; other values are JSON. With
    `item`, members of objects are written like parameters, and members of lists like parameters of that name.
    """

    key: str
    after_key: str
    closing: str = ""
    quotes: tuple[str, str] | None = None
    between: str = ""
    untyped: bool = False  # only the tool's schema tells strings from other values
    exact: bool = False  # line breaks at the ends of a string are part of it
    before_end: str = ""  # instead of `closing`: this, the name again, and `after_key`
    item: str = ""

    def closing_of(self, name: str) -> str:
        """Return the text after the value of the parameter `name`."""
        return f"{self.before_end}{name}{self.after_key}" if self.before_end else self.closing


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
    lead: str = ""  # optional text before everything else
    most: int = 0  # number of calls; 0: any
    parameters: ParameterForm | None = None
    said: str = ""  # before an answer that is text instead


class CallDelta(msgspec.Struct, frozen=True):
    """A piece of a tool call. All deltas of one call come before those of the next."""

    index: int  # of the call within the answer, from 0
    id: str = ""  # in the call's first delta only, as is the name
    name: str = ""
    arguments: str = ""  # more of the JSON text of its arguments, which are an object


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of the model's thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of the answer's text."""

    text: str


Part = Thought | Said | CallDelta


@dataclass(frozen=True, slots=True)
class Tags:
    """The texts around thinking, such as `<think>` and `</think>`."""

    opening: str
    closing: str
