"""Jinja chat templates, in the environment Hugging Face transformers renders them in."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
from jinja2.utils import Namespace

from puna.errors import TemplateError

#: Longest text or list that repeating (`*`) may make, and largest exponent of `**`.
_MAX_REPEATED = 10_000_000
_MAX_EXPONENT = 1000


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks what the model says; it renders as its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it this way)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _Namespace(Namespace):
    """`namespace()` without names that could reach into the interpreter."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _check_attribute(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def _check_attribute(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot have the attribute {name!r}")


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox, which in addition refuses to multiply a text into gigabytes."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        for value, times in ((left, right), (right, left)):
            if isinstance(value, str | list | tuple) and isinstance(times, int):
                _limit(len(value) * times, _MAX_REPEATED)
        if operator == "**" and isinstance(right, int | float):
            _limit(right, _MAX_EXPONENT)
        return super().call_binop(context, operator, left, right)


def _limit(size: float, most: int) -> None:
    if size > most:
        raise jinja2.exceptions.SecurityError(f"a result of size {size} is not allowed; at most {most} is")


def _raise(message: str) -> NoReturn:
    raise jinja2.exceptions.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which no model was trained on.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    # The class itself would bring `dict.update`, with which a template could change what it is given.
    return dict(*args, **kwargs)


@lru_cache(maxsize=1)
def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise,
        "strftime_now": _strftime_now,
        "dict": _dict,
        "namespace": _Namespace,
    }
    return environment


class JinjaTemplate:
    """A chat template, parsed. It is compiled when it is first rendered: that can run parts of it already."""

    def __init__(self, text: str) -> None:
        """Raises TemplateError naming the line."""
        self.text = text
        try:
            self._tree = _environment().parse(text)
            _check_names(self._tree)
        except jinja2.exceptions.TemplateSyntaxError as error:
            raise TemplateError(f"template error: line {error.lineno}: {error.message}") from error
        except (jinja2.exceptions.TemplateError, RecursionError, SyntaxError, ValueError) as error:
            raise TemplateError(f"template error: {error}") from error

    def reads(self, name: str) -> bool:
        """Whether the template looks at the variable `name` anywhere."""
        # Jinja's own analysis of variables compiles, and with that computes constants of any size.
        return any(
            node.name == name and node.ctx == "load" for node in self._tree.find_all(jinja2.nodes.Name)
        )

    def literal(self, text: str) -> bool:
        """Whether `text` stands in the template's own text or in one of its string constants."""
        return any(text in piece for piece in self._literals)

    @cached_property
    def _literals(self) -> list[str]:
        pieces = [node.data for node in self._tree.find_all(jinja2.nodes.TemplateData)]
        constants = (node.value for node in self._tree.find_all(jinja2.nodes.Const))
        return pieces + [value for value in constants if isinstance(value, str)]

    @cached_property
    def _compiled(self) -> jinja2.Template:
        return _environment().from_string(self.text)

    def render(self, values: Mapping[str, Any]) -> str:
        """The text. Raises TemplateError with the template's own message, or the line that failed."""
        try:
            return self._compiled.render(values)
        except jinja2.exceptions.TemplateError as error:
            raise TemplateError(f"template error: {error}") from error
        except Exception as error:
            line = next(
                (
                    f"line {frame.lineno}: "
                    for frame in reversed(traceback.extract_tb(error.__traceback__))
                    if frame.filename == "<template>"
                ),
                "",
            )
            raise TemplateError(f"template error: {line}{error}") from error


@lru_cache(maxsize=64)
def parsed(text: str) -> JinjaTemplate:
    """The template; texts seen lately are not parsed again. Raises TemplateError."""
    return JinjaTemplate(text)


def _check_names(node: jinja2.nodes.Node) -> None:
    """Raise for a filter or test that does not exist; where a condition guards it, it may be missing."""
    for child in node.iter_child_nodes():
        if isinstance(child, jinja2.nodes.If | jinja2.nodes.CondExpr):
            continue
        for kind, known in (
            (jinja2.nodes.Filter, _environment().filters),
            (jinja2.nodes.Test, _environment().tests),
        ):
            if isinstance(child, kind) and child.name not in known:
                what = kind.__name__.lower()
                raise jinja2.exceptions.TemplateAssertionError(
                    f"No {what} named {child.name!r}.", child.lineno
                )
        _check_names(child)
