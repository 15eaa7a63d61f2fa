"""Reading of whole answers, cut into pieces."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from puna.chat.answers.family import AnswerParser, Reading
from puna.chat.answers.parts import CallDelta, Said, Tags, Thought
from puna.chat.answers.registry import FAMILIES
from puna.chat.answers.tools import tools_of

THINK = Tags("<think>", "</think>")


def tool(name: str, required: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    tool(
        "get_weather",
        ["city"],
        city={"type": "string"},
        days={"type": "integer"},
        metric={"type": "boolean"},
        detail={"type": "object"},
        hours={"type": "array", "items": {"type": "number"}},
        scale={"anyOf": [{"type": "number"}, {"type": "null"}]},
    ),
    tool("get_time"),
    tool("write", text={"type": "string"}),
]


@dataclass
class Read:
    """The parts of a whole answer. `calls` are names with the JSON text of arguments."""

    thinking: str = ""
    text: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)


def reading(family: str, *, tools: Iterable[Mapping[str, Any]] = TOOLS, **options: Any) -> Reading:
    return Reading(FAMILIES[family], tools=tools_of(tools), **options)


def read(how: Reading, pieces: Iterable[str], *, complete: bool = True) -> Read:
    """Feed `pieces` to a parser, and join the parts it returns."""
    parser = AnswerParser(how)
    found = Read()
    for part in itertools.chain(*map(parser.feed, pieces), parser.flush(complete=complete)):
        match part:
            case Thought(text):
                found.thinking += text
            case Said(text):
                found.text += text
            case CallDelta():
                if part.index == len(found.calls):
                    assert part.id
                    assert part.name
                    found.calls.append((part.name, part.arguments))
                    found.ids.append(part.id)
                else:
                    assert (part.index, part.id, part.name) == (len(found.calls) - 1, "", "")
                    found.calls[-1] = found.calls[-1][0], found.calls[-1][1] + part.arguments
    assert len(set(found.ids)) == len(found.ids)
    return found


def cut(text: str, places: Iterable[int]) -> list[str]:
    """Cut `text` at `places`."""
    ends = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    return [text[begin:end] for begin, end in itertools.pairwise(ends)]
