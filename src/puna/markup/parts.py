"""What an answer is made of, once its markup has been read."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


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
