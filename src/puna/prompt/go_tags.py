"""Which tags a Go template puts around a message's thinking."""

from __future__ import annotations

from collections.abc import Iterator

from puna.prompt.go import GoTemplate, nodes
from puna.prompt.go.nodes import Action, Block, Branch, Text
from puna.prompt.thinking import Tags

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
