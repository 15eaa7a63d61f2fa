"""A parsed Go template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from puna.prompt.go import nodes
from puna.prompt.go.evaluator import Evaluator
from puna.prompt.go.functions import NAMES
from puna.prompt.go.lexer import Source
from puna.prompt.go.nodes import Action, Block, Branch, Pipeline, Statement, Tree
from puna.prompt.go.parser import parse
from puna.prompt.limits import MAX_TEMPLATE_CHARACTERS


class GoTemplate:
    """A template that can be executed any number of times, from any thread."""

    def __init__(self, text: str) -> None:
        """Raises TemplateError with line and column."""
        self.text = text
        self._source = Source(text)
        if len(text) > MAX_TEMPLATE_CHARACTERS:
            self._source.fail(f"longer than {MAX_TEMPLATE_CHARACTERS} characters", 0)
        self.tree = parse(text, NAMES)

    def execute(self, data: Any) -> str:
        """The text made of `data`. Raises TemplateError."""
        return Evaluator(self._source, self.tree).run(data)

    def execute_until(self, field: str, data: Mapping[str, Any]) -> str:
        """`execute`, leaving out everything after the first time the main template prints `.field`."""
        root, _ = _cut(self.tree.root, field)
        return Evaluator(self._source, Tree(root, self.tree.defined)).run(data)

    def appended(self, text: str) -> GoTemplate:
        """A template with `text` after this one's."""
        return GoTemplate(self.text + text)

    @property
    def identifiers(self) -> frozenset[str]:
        """Every field and variable name used anywhere, in lower case."""
        blocks = [self.tree.root, *self.tree.defined.values()]
        return frozenset(name.lower() for block in blocks for name in nodes.identifiers(block))


def _cut(block: Block, field: str) -> tuple[Block, bool]:
    """The block up to and including the first action printing `.field`; whether it was there."""
    kept: list[Statement] = []
    for statement in block:
        if isinstance(statement, Branch):
            body, found = _cut(statement.body, field)
            otherwise = None if found else statement.otherwise
            if otherwise is not None:
                otherwise, found = _cut(otherwise, field)
            statement = Branch(statement.kind, statement.pipeline, body, otherwise, at=statement.at)
        else:
            found = isinstance(statement, Action) and _prints(statement.pipeline, field)
        kept.append(statement)
        if found:
            return tuple(kept), True
    return tuple(kept), False


def _prints(pipeline: Pipeline, field: str) -> bool:
    return any(field in names for names in nodes.paths(pipeline))
