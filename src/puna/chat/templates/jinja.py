"""Jinja chat templates, rendered in the same environment as by Hugging Face transformers."""

from __future__ import annotations

import functools
import json
import traceback
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any, Final, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
from jinja2.utils import Cycler, Joiner, Namespace

from puna.errors import TemplateError, TemplateLimitError, TemplateRefusalError, TemplateRenderError

_FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodWrapperType,
    functools.partial,
)


class _Function:
    """A function that prints as its name, without its address."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function  # out of a template's reach, by its name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<function {getattr(self._function, '__name__', '')}>"


class _Iterable:
    """An iterator that prints without its address."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator

    def __iter__(self) -> Iterator[Any]:
        return self._iterator

    def __repr__(self) -> str:
        return "<iterator>"


_Iterable.__name__ = "generator"  # its name in errors


class _Cycler(Cycler):
    def __repr__(self) -> str:
        return "<cycler>"


class _Joiner(Joiner):
    def __repr__(self) -> str:
        return "<joiner>"


#: Replacements of Jinja's own classes, which print their address.
GLOBALS = {"cycler": _Cycler, "joiner": _Joiner}


def concealed(value: Any) -> Any:
    """Return `value`, wrapped if it would print its address."""
    return _Function(value) if isinstance(value, _FUNCTIONS) else value


def revealed(value: Any) -> Any:
    """Return the function that `value` wraps, because Jinja inspects functions before calling them."""
    return value._function if isinstance(value, _Function) else value


def concealing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter like `function`, whose iterators are wrapped."""

    @functools.wraps(function)  # including Jinja's marks about the arguments it wants
    def filtered(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        return _Iterable(found) if isinstance(found, Iterator) else found

    return filtered


def listed(value: Any) -> list[Any]:
    """Return the items of a filter's iterator for JSON. Raises TypeError for anything else."""
    if not isinstance(value, _Iterable):
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
    return list(value)


#: Longer templates are refused unread. The longest published ones have about 20,000 characters; this length
#: takes up to a second to parse.
MAX_TEMPLATE_CHARACTERS: Final = 256_000

#: Limits of one request, however often its template is rendered until the prompt fits.
PROCESSOR_TIME_S: Final = 2.0
MEMORY_BYTES: Final = 64 << 20  # besides the messages
OUTPUT_BYTES: Final = 4 << 20

#: Wall time of a rendering, on a machine that is busy with other things.
PATIENCE_S: Final = 30.0


def exceeded(what: str) -> TemplateLimitError:
    """Return the error of a request whose template took more than `what`."""
    return TemplateLimitError(
        f"the chat template was stopped: it took more than {what}, the limit for one request; "
        "simplify the template or send less to it"
    )


def too_slow() -> TemplateLimitError:
    return exceeded(f"{PROCESSOR_TIME_S:g} s of processor time")


def too_large() -> TemplateLimitError:
    return exceeded(f"{MEMORY_BYTES >> 20} MB of memory")


def too_long() -> TemplateLimitError:
    return exceeded(f"{OUTPUT_BYTES >> 20} MB of output")


def crashed(signal: int) -> TemplateLimitError:
    """Return the error of a request whose template ended its process by `signal`."""
    return TemplateLimitError(
        f"the chat template was stopped: it ended the process that renders it (signal {signal}), as "
        "endlessly nested values do; simplify the template"
    )


def joined(pieces: Iterable[str]) -> str:
    """Join `pieces`. Raises TemplateLimitError as soon as the text exceeds its limit."""
    kept: list[str] = []
    length = 0
    for piece in pieces:
        length += len(piece)
        if length > OUTPUT_BYTES:
            raise too_long()
        kept.append(piece)
    return "".join(kept)


#: Blocks and expressions may nest this deep: far more than in any published template.
MAX_DEPTH = 100


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}`, which marks the model's text and renders as its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it this way)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _Namespace(Namespace):
    """`namespace()` without attributes that reach into the interpreter."""

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
    """Jinja's sandbox without addresses. The renderer's process bounds time and memory."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        return concealed(super().getattr(obj, attribute))

    def getitem(self, obj: Any, argument: Any) -> Any:
        return concealed(super().getitem(obj, argument))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # Kimi K2's template keeps call ids in its own list, and no values are shared between requests.
        return (attr in ("append", "pop") and type(obj) is list) or super().is_safe_attribute(
            obj, attr, value
        )

    def call(__self, __context: jinja2.runtime.Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        return super().call(__context, revealed(__obj), *args, **kwargs)


class _RefusalError(jinja2.exceptions.TemplateError):
    """An error raised by a template itself."""


def _raise(message: str) -> NoReturn:
    raise _RefusalError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which no model was trained on.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=listed,
    )


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    # The class would offer `dict.update`, with which a template could change its values.
    return dict(*args, **kwargs)


@lru_cache(maxsize=1)
def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters = {name: concealing(function) for name, function in environment.filters.items()}
    environment.filters["tojson"] = _tojson
    environment.globals |= GLOBALS | {
        "raise_exception": _raise,
        "strftime_now": _strftime_now,
        "dict": _dict,
        "namespace": _Namespace,
    }
    environment.globals = {name: concealed(value) for name, value in environment.globals.items()}
    return environment


class JinjaTemplate:
    """A parsed chat template, compiled at its first rendering because compiling may run parts of it."""

    def __init__(self, text: str) -> None:
        """Raises TemplateError naming the line."""
        self.text = text
        if len(text) > MAX_TEMPLATE_CHARACTERS:
            raise TemplateError(f"template error: longer than {MAX_TEMPLATE_CHARACTERS} characters")
        self._read: set[str] = set()
        self._accepted: dict[str, tuple[str, ...]] = {}
        self._compared: dict[str, set[str]] = {}
        self._literals: list[str] = []
        try:
            self.tree = _environment().parse(text)
            self._look_at(self.tree)
        except jinja2.exceptions.TemplateSyntaxError as error:
            raise TemplateError(f"template error: line {error.lineno}: {error.message}") from error
        except RecursionError:
            raise TemplateError("template error: nested too deeply") from None
        except (jinja2.exceptions.TemplateError, SyntaxError, ValueError) as error:
            raise TemplateError(f"template error: {error}") from error

    def _look_at(self, tree: jinja2.nodes.Template) -> None:
        """Collect the variables that the template reads, their accepted values, and its literal texts.

        Raises a Jinja error for a filter or test that does not exist, unless a condition guards it.
        """
        # Jinja's own analyses compile, which computes constants of any size, or recurse.
        pending: list[tuple[jinja2.nodes.Node, int, bool]] = [(tree, 0, False)]
        while pending:
            node, depth, guarded = pending.pop()
            if depth > MAX_DEPTH:
                raise jinja2.exceptions.TemplateSyntaxError(f"nested more than {MAX_DEPTH} deep", node.lineno)
            match node:
                case jinja2.nodes.Name(name=name, ctx="load"):
                    self._read.add(name)
                case jinja2.nodes.Compare():
                    self._look_at_comparison(node)
                case jinja2.nodes.TemplateData(data=text) | jinja2.nodes.Const(value=str() as text):
                    self._literals.append(text)
                case jinja2.nodes.If() | jinja2.nodes.CondExpr():
                    guarded = True
                case jinja2.nodes.Filter(name=name) if not guarded and name not in _environment().filters:
                    raise jinja2.exceptions.TemplateAssertionError(f"No filter named {name!r}.", node.lineno)
                case jinja2.nodes.Test(name=name) if not guarded and name not in _environment().tests:
                    raise jinja2.exceptions.TemplateAssertionError(f"No test named {name!r}.", node.lineno)
            pending += [(child, depth + 1, guarded) for child in reversed([*node.iter_child_nodes()])]

    def _look_at_comparison(self, node: jinja2.nodes.Compare) -> None:
        """Collect the texts with which a variable, perhaps filtered, is compared."""
        compared = node.expr
        while isinstance(compared, jinja2.nodes.Filter) and compared.node is not None:
            compared = compared.node
        if not isinstance(compared, jinja2.nodes.Name):
            return
        for operand in node.ops:
            listed = isinstance(operand.expr, jinja2.nodes.List | jinja2.nodes.Tuple)
            items = operand.expr.iter_child_nodes() if listed else [operand.expr]
            values = (item.value for item in items if isinstance(item, jinja2.nodes.Const))
            texts = tuple(value for value in values if isinstance(value, str))
            self._compared.setdefault(compared.name, set()).update(texts)
            if operand.op == "notin" and listed:
                self._accepted[compared.name] = texts

    def reads(self, name: str) -> bool:
        """Return whether the template reads the variable `name` anywhere."""
        return name in self._read

    def accepted(self, name: str) -> tuple[str, ...]:
        """Return the texts in the list that the template expects the variable `name` in; empty without one.

        Templates mostly refuse other values.
        """
        return self._accepted.get(name, ())

    def compared(self, name: str) -> Collection[str]:
        """Return the texts with which the template compares the variable `name` anywhere."""
        return self._compared.get(name, ())

    def literal(self, text: str) -> bool:
        """Return whether `text` occurs in the template's literal text or string constants."""
        return any(text in piece for piece in self._literals)

    @cached_property
    def _compiled(self) -> jinja2.Template:
        return _environment().from_string(self.tree)

    def render(self, values: Mapping[str, Any]) -> str:
        """Return the rendered text. Raises TemplateRenderError naming the line that failed.

        Raises TemplateRefusalError with the template's own message, and TemplateLimitError if the text is too
        long; the renderer enforces the other limits.
        """
        try:
            return joined(self._compiled.generate(values))
        except (TemplateLimitError, MemoryError):
            raise
        except _RefusalError as error:
            raise TemplateRefusalError(f"template error: {error}") from error
        except jinja2.exceptions.TemplateError as error:
            raise TemplateRenderError(f"template error: {error}") from error
        except Exception as error:
            line = next(
                (
                    f"line {frame.lineno}: "
                    for frame in reversed(traceback.extract_tb(error.__traceback__))
                    if frame.filename == "<template>"
                ),
                "",
            )
            raise TemplateRenderError(f"template error: {line}{error}") from error
