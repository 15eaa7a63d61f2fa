"""How calls are written, for those who make a model write them."""

from __future__ import annotations

from dataclasses import dataclass


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
