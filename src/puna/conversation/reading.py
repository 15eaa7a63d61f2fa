"""How the answers of one request are to be read."""

from __future__ import annotations

from puna.engine.events import Generate
from puna.markup.family import Reading
from puna.markup.registry import PARSERS, family_by
from puna.markup.tools import tools_of
from puna.prompt.format import Traits
from puna.prompt.messages import Chat


def reading_of(request: Generate, traits: Traits, architecture: str, prompt: str) -> Reading | None:
    """How answers to `prompt` are read; None where all of them is what the model says.

    `traits` are those of the template that the request uses. A name of the request itself (`parser`) counts
    more than they do, and one that nobody knows does not count.
    """
    named = PARSERS.get(request.parser)
    family = family_by(request.parser, traits.family, architecture, traits.call_tags)
    chat = request.prompt if isinstance(request.prompt, Chat) else None
    if chat is None and not request.think:
        return None
    calls = chat is not None and chat.tool_choice != "none" and (named is None or named.calls)
    tools = tools_of(chat.tools) if chat is not None and calls else {}
    thinking = None
    if family.thinking is not None or request.think or (named is not None and named.always_splits):
        thinking = family.thinking or (named.thinking if named else None) or traits.thinking_tags
    if thinking is None and not tools and not family.dropped:
        return None
    continues = chat is not None and bool(chat.messages) and chat.messages[-1].role == "assistant"
    begins = named is not None and not continues and named.begins_thinking(bool(request.think), bool(tools))
    return Reading(
        family,
        thinking=thinking,
        prompt=prompt,
        tools=tools,
        streams_calls=request.stream_calls,
        begins_thinking=begins,
        choice=chat.tool_choice if chat and tools else "auto",
        parallel=chat is None or chat.parallel_tool_calls,
        strict=chat is not None and chat.strict_tools,
    )
