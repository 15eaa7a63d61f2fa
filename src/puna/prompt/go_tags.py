"""Which tags a Go template puts around a message's thinking, and around its tool calls."""

from __future__ import annotations

from collections.abc import Iterator

from puna.markup.family import tags_around
from puna.markup.parts import Tags
from puna.prompt.go import GoTemplate, nodes
from puna.prompt.go.nodes import Action, Block, Branch, Text

#: What is longer is no tag, and would be compared with every end of an answer.
_LONGEST_TAG = 256


def thinking_tags(template: GoTemplate) -> Tags | None:
    """The texts that begin and end the block printing `.Thinking` in a range over the messages."""
    for root in (template.tree.root, *template.tree.defined.values()):
        for block in _thinking_blocks(root, over_messages=False):
            first, last = block[0], block[-1]
            if isinstance(first, Text) and isinstance(last, Text):
                opening, closing = first.text.strip(), last.text.strip()
                if 0 < len(opening) <= _LONGEST_TAG and 0 < len(closing) <= _LONGEST_TAG:
                    return Tags(opening, closing)
    return None


def _thinking_blocks(block: Block, *, over_messages: bool) -> Iterator[Block]:
    """Blocks with an action that prints `.Thinking`."""
    for statement in block:
        if isinstance(statement, Action):
            paths = nodes.paths(statement.pipeline)
            if over_messages and any(names[-1:] == ("Thinking",) for names in paths):
                yield block
        elif isinstance(statement, Branch):
            inside = over_messages
            if statement.kind == "range":
                inside = any("Messages" in names for names in nodes.paths(statement.pipeline))
            yield from _thinking_blocks(statement.body, over_messages=inside)
            yield from _thinking_blocks(statement.otherwise or (), over_messages=over_messages)


def call_tags(template: GoTemplate) -> Tags:
    """The texts around what the first block that is there for `.ToolCalls` writes."""
    for root in (template.tree.root, *template.tree.defined.values()):
        for block in _call_blocks(root):
            return tags_around(_texts(block))
    return Tags("", "")


def _call_blocks(block: Block) -> Iterator[Block]:
    for statement in block:
        if isinstance(statement, Branch):
            if any("ToolCalls" in names for names in nodes.paths(statement.pipeline)):
                yield statement.body
            yield from _call_blocks(statement.body)
            yield from _call_blocks(statement.otherwise or ())


def _texts(block: Block) -> Iterator[str]:
    for statement in block:
        if isinstance(statement, Text):
            yield statement.text
        elif isinstance(statement, Branch):
            yield from _texts(statement.body)
            yield from _texts(statement.otherwise or ())
