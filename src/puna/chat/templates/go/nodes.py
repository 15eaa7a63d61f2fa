"""The tree of a parsed template."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateNode:
    at: int  # offset in the template's text


# --- operands ---


@dataclass(frozen=True, slots=True)
class Dot(TemplateNode):
    pass


@dataclass(frozen=True, slots=True)
class Nil(TemplateNode):
    pass


@dataclass(frozen=True, slots=True)
class Constant(TemplateNode):
    """A string, number, character (as its code point) or truth value."""

    value: str | int | float | bool


@dataclass(frozen=True, slots=True)
class Field(TemplateNode):
    """`.A.B`"""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Variable(TemplateNode):
    """`$x.A.B`; the root value is `$`."""

    name: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Function(TemplateNode):
    name: str


@dataclass(frozen=True, slots=True)
class Chain(TemplateNode):
    """`(pipeline).A.B`"""

    base: Operand
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PipelineCommand(TemplateNode):
    """An operand and its arguments."""

    words: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pipeline(TemplateNode):
    """`$i, $e := a b | c d`. `declares` tells `:=` from `=`."""

    commands: tuple[PipelineCommand, ...]
    variables: tuple[str, ...] = ()
    declares: bool = True


Operand = Dot | Nil | Constant | Field | Variable | Function | Chain | Pipeline


# --- statements ---


@dataclass(frozen=True, slots=True)
class Text(TemplateNode):
    text: str


@dataclass(frozen=True, slots=True)
class Action(TemplateNode):
    pipeline: Pipeline


@dataclass(frozen=True, slots=True)
class Break(TemplateNode):
    pass


@dataclass(frozen=True, slots=True)
class Continue(TemplateNode):
    pass


@dataclass(frozen=True, slots=True)
class TemplateCall(TemplateNode):
    """`{{ template "name" pipeline }}`"""

    name: str
    pipeline: Pipeline


@dataclass(frozen=True, slots=True)
class Branch(TemplateNode):
    """`if`, `with` or `range`: `kind` says which."""

    kind: str
    pipeline: Pipeline
    body: Block
    otherwise: Block | None = None


Statement = Text | Action | Break | Continue | TemplateCall | Branch
Block = tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Tree:
    """The main template and the ones it defines."""

    root: Block
    defined: dict[str, Block] = field(default_factory=dict)


def operands(pipeline: Pipeline) -> Iterator[Operand]:
    """Every operand of a pipeline, inside parentheses, too."""
    for command in pipeline.commands:
        for word in command.words:
            yield word
            base = word.base if isinstance(word, Chain) else word
            if isinstance(base, Pipeline):
                yield from operands(base)


def paths(pipeline: Pipeline) -> Iterator[tuple[str, ...]]:
    """The names of each `.A.B` and `$x.A.B` in a pipeline."""
    for operand in operands(pipeline):
        if isinstance(operand, Field | Variable):
            yield operand.names


def identifiers(block: Block) -> Iterator[str]:
    """Every field and variable name in a block, as written."""
    for statement in block:
        if isinstance(statement, Action | Branch | TemplateCall):
            for operand in operands(statement.pipeline):
                if isinstance(operand, Field | Chain):
                    yield from operand.names
                elif isinstance(operand, Variable):
                    yield from (operand.name.removeprefix("$"), *operand.names)
            yield from (name.removeprefix("$") for name in statement.pipeline.variables)
        if isinstance(statement, Branch):
            yield from identifiers(statement.body)
            yield from identifiers(statement.otherwise or ())
