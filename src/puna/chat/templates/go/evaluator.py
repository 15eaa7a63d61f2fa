"""Execution of a parsed Go template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NoReturn

from puna.chat.templates.go.functions import ARITY, FUNCTIONS, NAMES, CallError
from puna.chat.templates.go.lexer import TemplateSource
from puna.chat.templates.go.parser import (
    Action,
    Block,
    Branch,
    Break,
    Chain,
    Constant,
    Dot,
    Field,
    Function,
    Nil,
    Operand,
    Pipeline,
    PipelineCommand,
    Statement,
    TemplateCall,
    Text,
    Tree,
    Variable,
    identifiers,
    parse,
    paths,
)
from puna.chat.templates.go.values import MISSING, Record, is_true, to_text, type_name
from puna.chat.templates.jinja import MAX_TEMPLATE_CHARACTERS, OUTPUT_BYTES, too_long
from puna.errors import TemplateError, TemplateRenderError

#: Depth of templates that call templates.
MAX_CALLS = 24

_NO_VALUE: Any = object()

#: The way a block ended: at its end, or by a jump out of the loop's body.
Exit = Literal["end", "break", "continue"]


class Evaluator:
    """One execution: its variables and its output."""

    def __init__(self, source: TemplateSource, tree: Tree) -> None:
        self._source = source
        self._tree = tree
        self._variables: list[tuple[str, Any]] = []
        self._output: list[str] = []
        self._characters = 0
        self._calls = 0

    def run(self, data: Any) -> str:
        """Return the template's output for `data`. Raises TemplateRenderError with line and column."""
        self._variables = [("$", data)]
        try:
            self._block(self._tree.root, data)
        except RecursionError:
            raise TemplateRenderError("template error: nested too deeply") from None
        except TemplateError as error:
            raise TemplateRenderError(str(error)) from error
        return "".join(self._output)

    def _block(self, block: Block, dot: Any) -> Exit:
        for statement in block:
            exit = self._statement(statement, dot)
            if exit != "end":
                return exit
        return "end"

    def _statement(self, statement: Statement, dot: Any) -> Exit:
        if isinstance(statement, Text):
            self._print(statement.text)
        elif isinstance(statement, Action):
            value = self._pipeline(statement.pipeline, dot)
            if not statement.pipeline.variables:
                self._print(to_text(value))
        elif isinstance(statement, Branch):
            known = len(self._variables)
            exit = self._branch(statement, dot)
            del self._variables[known:]
            return exit
        elif isinstance(statement, TemplateCall):
            self._call(statement, dot)
        elif isinstance(statement, Break):
            return "break"
        else:
            return "continue"
        return "end"

    def _branch(self, branch: Branch, dot: Any) -> Exit:
        value = self._pipeline(branch.pipeline, dot, in_range=branch.kind == "range")
        if branch.kind == "range":
            return self._range(branch, value, dot)
        if is_true(value):
            return self._block(branch.body, value if branch.kind == "with" else dot)
        return self._block(branch.otherwise or (), dot)

    def _range(self, branch: Branch, value: Any, dot: Any) -> Exit:
        declared = branch.pipeline.variables
        if declared and branch.pipeline.declares:
            self._variables += [(name, None) for name in declared]
        frame = len(self._variables)
        empty = True
        for key, item in self._items(branch, value):
            empty = False
            if len(declared) == 1:
                self._set(declared[0], item)
            elif declared:
                self._set(declared[0], key)
                self._set(declared[1], item)
            exit = self._block(branch.body, item)
            del self._variables[frame:]
            if exit == "break":
                break
        return self._block(branch.otherwise or (), dot) if empty else "end"

    def _items(self, branch: Branch, value: Any) -> Iterable[tuple[Any, Any]]:
        if isinstance(value, list):
            return enumerate(value)
        if isinstance(value, dict):
            return [(key, value[key]) for key in sorted(value)]
        if isinstance(value, int) and not isinstance(value, bool):
            return ((i, i) for i in range(value))
        if value is None or value is MISSING:
            return ()
        return self._fail(f"range can't iterate over {type_name(value)}", branch.at)

    def _call(self, call: TemplateCall, dot: Any) -> None:
        value = self._pipeline(call.pipeline, dot)
        outer, self._variables = self._variables, [("$", value)]
        self._calls += 1
        if self._calls > MAX_CALLS:
            self._fail(f'templates call each other more than {MAX_CALLS} deep at "{call.name}"', call.at)
        self._block(self._tree.defined[call.name], value)
        self._calls -= 1
        self._variables = outer

    def _pipeline(self, pipeline: Pipeline, dot: Any, *, in_range: bool = False) -> Any:
        value = _NO_VALUE
        for command in pipeline.commands:
            value = self._command(command, dot, value)
        if pipeline.variables and not in_range:
            for name in pipeline.variables:
                if pipeline.declares:
                    self._variables.append((name, value))
                else:
                    self._set(name, value)
        return value

    def _command(self, command: PipelineCommand, dot: Any, piped: Any) -> Any:
        first = command.words[0]
        if isinstance(first, Function):
            return self._function(first, command.words[1:], dot, piped)
        if len(command.words) > 1 or piped is not _NO_VALUE:
            if isinstance(first, Field):
                self._fail(f"{first.names[-1]} has arguments but is not a function", first.at)
            self._fail("can't give argument to a value that is not a function", first.at)
        if isinstance(first, Nil):
            self._fail("nil is not a command", first.at)
        return self._operand(first, dot)

    def _operand(self, operand: Operand, dot: Any) -> Any:
        if isinstance(operand, Constant):
            return operand.value
        if isinstance(operand, Field):
            return self._fields(dot, operand.names, operand.at)
        if isinstance(operand, Variable):
            return self._fields(self._get(operand.name), operand.names, operand.at)
        if isinstance(operand, Dot):
            return dot
        if isinstance(operand, Nil):
            return None
        if isinstance(operand, Pipeline):
            return self._pipeline(operand, dot)
        if isinstance(operand, Chain):
            return self._fields(self._operand(operand.base, dot), operand.names, operand.at)
        return self._function(operand, (), dot, _NO_VALUE)

    def _fields(self, value: Any, names: Sequence[str], at: int) -> Any:
        for name in names:
            if isinstance(value, dict):
                value = value.get(name, MISSING)
            elif isinstance(value, Record):
                if name not in value.fields:
                    self._fail(f"can't evaluate field {name} in type {value.kind}", at)
                value = value.fields[name]
            elif value is None:
                self._fail(f"nil pointer evaluating .{name}", at)
            elif value is not MISSING:
                self._fail(f"can't evaluate field {name} in type {type_name(value)}", at)
        return value

    def _function(self, function: Function, words: Sequence[Operand], dot: Any, piped: Any) -> Any:
        name, at = function.name, function.at
        given = len(words) + (piped is not _NO_VALUE)
        least, most = ARITY.get(name, (0, None))
        if given < least or (most is not None and given > most):
            wanted = f"{least}" if least == most else f"at least {least}"
            self._fail(f"wrong number of args for {name}: want {wanted} got {given}", at)
        if name in ("and", "or"):
            return self._short_circuit(name, words, dot, piped)
        arguments = [self._operand(word, dot) for word in words]
        if piped is not _NO_VALUE:
            arguments.append(piped)
        try:
            value = FUNCTIONS[name](*arguments)
        except (CallError, TypeError, ValueError, OverflowError, RecursionError) as error:
            self._fail(f"error calling {name}: {error}", at)
        return value

    def _short_circuit(self, name: str, words: Sequence[Operand], dot: Any, piped: Any) -> Any:
        value = _NO_VALUE
        for word in words:
            value = self._operand(word, dot)
            if is_true(value) == (name == "or"):
                return value
        return value if piped is _NO_VALUE else piped

    def _get(self, name: str) -> Any:
        return next(value for known, value in reversed(self._variables) if known == name)

    def _set(self, name: str, value: Any) -> None:
        for i in range(len(self._variables) - 1, -1, -1):
            if self._variables[i][0] == name:
                self._variables[i] = (name, value)
                return

    def _print(self, text: str) -> None:
        self._characters += len(text)
        if self._characters > OUTPUT_BYTES:
            raise too_long()
        self._output.append(text)

    def _fail(self, message: str, at: int) -> NoReturn:
        self._source.fail(message, at)


class GoTemplate:
    """A template that can be executed any number of times, from any thread."""

    def __init__(self, text: str) -> None:
        """Raises TemplateError with line and column."""
        self.text = text
        self._source = TemplateSource(text)
        if len(text) > MAX_TEMPLATE_CHARACTERS:
            self._source.fail(f"longer than {MAX_TEMPLATE_CHARACTERS} characters", 0)
        self.tree = parse(text, NAMES)

    def execute(self, data: Any) -> str:
        """Return the output for `data`. Raises TemplateError."""
        return Evaluator(self._source, self.tree).run(data)

    def execute_until(self, field: str, data: Mapping[str, Any]) -> str:
        """Execute the main template only up to the first action that prints `.field`."""
        root, _ = _cut(self.tree.root, field)
        return Evaluator(self._source, Tree(root, self.tree.defined)).run(data)

    def appended(self, text: str) -> GoTemplate:
        """Return a template with `text` appended."""
        return GoTemplate(self.text + text)

    @property
    def identifiers(self) -> frozenset[str]:
        """Every field and variable name used anywhere, in lower case."""
        blocks = [self.tree.root, *self.tree.defined.values()]
        return frozenset(name.lower() for block in blocks for name in identifiers(block))


def _cut(block: Block, field: str) -> tuple[Block, bool]:
    """Return the block up to and including the first action printing `.field`, and whether it has one."""
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
    return any(field in names for names in paths(pipeline))
