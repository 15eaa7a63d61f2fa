"""Parser of templates and its tree, with Go's rules and, where it helps, Go's error messages."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from puna.chat.templates.go.lexer import TemplateSource, Token, read_char, read_number, read_string, tokens

#: Nesting of blocks and parentheses: far more than any real template has, far less than the stack holds.
MAX_DEPTH = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateNode:
    at: int  # offset in the template's text


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
    """Yield every operand of a pipeline, including those in parentheses."""
    for command in pipeline.commands:
        for word in command.words:
            yield word
            base = word.base if isinstance(word, Chain) else word
            if isinstance(base, Pipeline):
                yield from operands(base)


def paths(pipeline: Pipeline) -> Iterator[tuple[str, ...]]:
    """Yield the names of each `.A.B` and `$x.A.B` in a pipeline."""
    for operand in operands(pipeline):
        if isinstance(operand, Field | Variable):
            yield operand.names


def identifiers(block: Block) -> Iterator[str]:
    """Yield every field and variable name in a block, as written."""
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


def parse(text: str, functions: Collection[str]) -> Tree:
    """Parse a template. Raises TemplateError with line and column."""
    return _Parser(TemplateSource(text), functions).tree()


class _Parser:
    def __init__(self, source: TemplateSource, functions: Collection[str]) -> None:
        self._source = source
        self._functions = functions
        self._tokens = list(tokens(source))
        self._next = 0
        self._variables = ["$"]
        self._defined: dict[str, Block] = {}
        self._calls: list[tuple[str, int]] = []
        self._depth = 0
        self._ranges = 0

    def tree(self) -> Tree:
        root, end = self._block(top=True)
        if end.kind != "eof":
            self._source.fail(f"unexpected {{{{{end.text}}}}}", end.at)
        for name, at in self._calls:
            if name not in self._defined:
                self._source.fail(f'template "{name}" is not defined', at)
        return Tree(root, self._defined)

    def _block(self, *, top: bool = False) -> tuple[Block, Token]:
        """Return the statements up to `end`, `else` or the end of the text, and that token."""
        statements: list[Statement] = []
        while True:
            token = self._take()
            if token.kind == "text":
                statements.append(Text(token.text, at=token.at))
                continue
            if token.kind == "eof":
                return tuple(statements), token
            word = self._peek(skip_space=True)
            if word.kind == "keyword" and word.text in ("end", "else"):
                self._take(skip_space=True)
                return tuple(statements), word
            if word.kind == "keyword" and word.text == "define":
                if not top:
                    self._source.fail("unexpected {{define}} inside a block", word.at)
                self._define()
            else:
                statements.append(self._statement(word))

    def _statement(self, word: Token) -> Statement:
        if word.kind != "keyword" or word.text == "nil":
            pipeline = self._pipeline("command", ends=("right",))
            self._expect("right", "command")
            return Action(pipeline, at=word.at)
        self._take(skip_space=True)
        if word.text in ("if", "with", "range"):
            return self._branch(word)
        if word.text in ("break", "continue"):
            self._expect("right", f"{{{{{word.text}}}}}")
            if not self._ranges:
                self._source.fail(f"{{{{{word.text}}}}} outside {{{{range}}}}", word.at)
            return Break(at=word.at) if word.text == "break" else Continue(at=word.at)
        if word.text == "template":
            return self._call(word)
        return self._inline_block(word)

    def _branch(self, word: Token) -> Branch:
        self._deeper(word.at)
        known = len(self._variables)
        pipeline = self._pipeline(word.text, ends=("right",))
        self._expect("right", word.text)
        self._ranges += word.text == "range"
        body, end = self._block()
        self._ranges -= word.text == "range"
        otherwise: Block | None = None
        if end.kind == "keyword" and end.text == "else":
            chained = self._peek(skip_space=True)
            if chained.kind == "keyword" and chained.text in ("if", "with") and word.text == chained.text:
                # `{{else if x}}` opens a nested `if` that the same `{{end}}` closes.
                self._take(skip_space=True)
                otherwise = (self._branch(chained),)
                del self._variables[known:]
                self._depth -= 1
                return Branch(word.text, pipeline, body, otherwise, at=word.at)
            self._expect("right", "{{else}}")
            otherwise, end = self._block()
        self._close(end, word)
        del self._variables[known:]
        self._depth -= 1
        return Branch(word.text, pipeline, body, otherwise, at=word.at)

    def _close(self, end: Token, word: Token) -> None:
        if end.kind == "eof":
            self._source.fail(f"unexpected end of the template: {{{{{word.text}}}}} is not closed", word.at)
        if end.text == "else":
            self._source.fail(f"expected end; found {{{{else}}}} in {word.text}", end.at)
        self._expect("right", "{{end}}")

    def _define(self) -> None:
        word = self._take(skip_space=True)
        name = self._name("define clause")
        self._expect("right", "define clause")
        self._defined[name] = self._body_of(word)

    def _inline_block(self, word: Token) -> Statement:
        name = self._name("block clause")
        pipeline = self._pipeline("block clause", ends=("right",))
        self._expect("right", "block clause")
        self._defined.setdefault(name, self._body_of(word))
        return TemplateCall(name, pipeline, at=word.at)

    def _body_of(self, word: Token) -> Block:
        """Parse the body of a define or block, which has its own variables and no surrounding range."""
        self._deeper(word.at)
        outer_variables, outer_ranges = self._variables, self._ranges
        self._variables, self._ranges = ["$"], 0
        body, end = self._block()
        self._close(end, word)
        self._variables, self._ranges = outer_variables, outer_ranges
        self._depth -= 1
        return body

    def _call(self, word: Token) -> Statement:
        name = self._name("template clause")
        self._calls.append((name, word.at))
        if self._peek(skip_space=True).kind == "right":
            self._source.fail(f'template "{name}" needs an argument, usually a dot', word.at)
        pipeline = self._pipeline("template clause", ends=("right",))
        self._expect("right", "template clause")
        return TemplateCall(name, pipeline, at=word.at)

    def _name(self, context: str) -> str:
        token = self._take(skip_space=True)
        if token.kind not in ("string", "raw"):
            self._unexpected(token, context)
        return self._string(token)

    def _pipeline(self, context: str, ends: tuple[str, ...]) -> Pipeline:
        at = self._peek(skip_space=True).at
        variables, declares = self._declaration(context)
        commands: list[PipelineCommand] = []
        while True:
            token = self._peek(skip_space=True)
            if token.kind in ends:
                break
            if commands:
                if token.kind != "pipe":
                    self._unexpected(token, context)
                self._take(skip_space=True)
            commands.append(self._command(context))
        if not commands:
            self._source.fail(f"missing value for {context}", at)
        for i, command in enumerate(commands[1:], start=2):
            if isinstance(command.words[0], Dot | Nil | Constant):
                self._source.fail(f"non executable command in pipeline stage {i}", command.at)
        if declares:
            self._variables += variables
        return Pipeline(tuple(commands), variables, declares, at=at)

    def _declaration(self, context: str) -> tuple[tuple[str, ...], bool]:
        """Parse `$x :=`, `$x =` or `$i, $e :=` if the pipeline begins with one."""
        start = self._next
        names: list[Token] = []
        while True:
            token = self._take(skip_space=True)
            if token.kind != "variable":
                break
            names.append(token)
            after = self._take(skip_space=True)
            if after.kind in ("declare", "assign"):
                return self._checked_declaration(names, context, declares=after.kind == "declare")
            if after.kind != "comma":
                break
            if context != "range" or len(names) > 1:
                self._source.fail(f"too many declarations in {context}", after.at)
        self._next = start
        return (), True

    def _checked_declaration(
        self, names: list[Token], context: str, *, declares: bool
    ) -> tuple[tuple[str, ...], bool]:
        for token in names:
            if token.text == "$":
                self._source.fail("cannot assign to $", token.at)
            if not declares and token.text not in self._variables:
                self._source.fail(f'undefined variable "{token.text}"', token.at)
        if self._peek(skip_space=True).kind in ("right", "close"):
            self._source.fail(f"missing value for {context}", names[0].at)
        return tuple(token.text for token in names), declares

    def _command(self, context: str) -> PipelineCommand:
        words: list[Operand] = []
        at = self._peek(skip_space=True).at
        while True:
            token = self._peek(skip_space=True)
            if token.kind in ("right", "close", "pipe"):
                break
            words.append(self._operand(context))
            after = self._peek()
            if after.kind not in ("space", "right", "close", "pipe"):
                self._unexpected(after, "operand")
        if not words:
            self._source.fail(f"missing value for {context}", at)
        return PipelineCommand(tuple(words), at=at)

    def _operand(self, context: str) -> Operand:
        base = self._term(context)
        names: list[str] = []
        while self._peek().kind == "field":
            names.append(self._take().text[1:])
        if not names:
            return base
        if isinstance(base, Field):
            return Field((*base.names, *names), at=base.at)
        if isinstance(base, Variable):
            return Variable(base.name, (*base.names, *names), at=base.at)
        if isinstance(base, Constant | Nil | Dot):
            self._source.fail(f"unexpected .{names[0]} after a constant or dot", base.at)
        return Chain(base, tuple(names), at=base.at)

    def _term(self, context: str) -> Operand:
        token = self._take(skip_space=True)
        at = token.at
        if token.kind == "name":
            if token.text not in self._functions:
                self._source.fail(f'function "{token.text}" not defined', at)
            return Function(token.text, at=at)
        if token.kind == "dot":
            return Dot(at=at)
        if token.kind == "keyword" and token.text == "nil":
            return Nil(at=at)
        if token.kind == "field":
            return Field((token.text[1:],), at=at)
        if token.kind == "variable":
            if token.text not in self._variables:
                self._source.fail(f'undefined variable "{token.text}"', at)
            return Variable(token.text, at=at)
        if token.kind == "bool":
            return Constant(token.text == "true", at=at)
        if token.kind in ("string", "raw"):
            return Constant(self._string(token), at=at)
        if token.kind in ("number", "char"):
            return Constant(self._number(token), at=at)
        if token.kind == "open":
            self._deeper(at)
            pipeline = self._pipeline("parenthesized pipeline", ends=("close",))
            self._take(skip_space=True)
            self._depth -= 1
            return pipeline
        return self._unexpected(token, context)

    def _string(self, token: Token) -> str:
        try:
            return read_string(token.text)
        except ValueError as error:
            self._source.fail(str(error), token.at)

    def _number(self, token: Token) -> int | float:
        try:
            return read_char(token.text) if token.kind == "char" else read_number(token.text)
        except ValueError as error:
            self._source.fail(str(error), token.at)

    def _peek(self, *, skip_space: bool = False) -> Token:
        i = self._next
        while skip_space and self._tokens[i].kind == "space":
            i += 1
        return self._tokens[i]

    def _take(self, *, skip_space: bool = False) -> Token:
        while skip_space and self._tokens[self._next].kind == "space":
            self._next += 1
        token = self._tokens[self._next]
        self._next += token.kind != "eof"
        return token

    def _expect(self, kind: str, context: str) -> Token:
        token = self._take(skip_space=True)
        return token if token.kind == kind else self._unexpected(token, context)

    def _unexpected(self, token: Token, context: str) -> NoReturn:
        shown = re.sub(r"\s+", " ", token.text)[:20] or token.kind
        self._source.fail(f"unexpected {shown!r} in {context}", token.at)

    def _deeper(self, at: int) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._source.fail(f"nested more than {MAX_DEPTH} deep", at)
