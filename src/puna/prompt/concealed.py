"""Functions and iterators as a Jinja template gets to see them: not where they lie in memory."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

from jinja2.utils import Cycler, Joiner

_FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodWrapperType,
    functools.partial,
)


class _Function:
    """A function whose text is its name."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function  # out of a template's reach, by its name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<function {getattr(self._function, '__name__', '')}>"


class _Iterable:
    """An iterator whose text says no more than that."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator

    def __iter__(self) -> Iterator[Any]:
        return self._iterator

    def __repr__(self) -> str:
        return "<iterator>"


_Iterable.__name__ = "generator"  # which is what errors call it


class _Cycler(Cycler):
    def __repr__(self) -> str:
        return "<cycler>"


class _Joiner(Joiner):
    def __repr__(self) -> str:
        return "<joiner>"


#: Jinja's own, which print their address.
GLOBALS = {"cycler": _Cycler, "joiner": _Joiner}


def concealed(value: Any) -> Any:
    """`value`, or what stands for it if its text would be an address."""
    return _Function(value) if isinstance(value, _FUNCTIONS) else value


def revealed(value: Any) -> Any:
    """What `value` stands for: Jinja looks at a function before it calls it."""
    return value._function if isinstance(value, _Function) else value


def concealing(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that gives what `function` gives, concealed if it is an iterator."""

    @functools.wraps(function)  # also what Jinja notes on it: which arguments it wants
    def filtered(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        return _Iterable(found) if isinstance(found, Iterator) else found

    return filtered


def listed(value: Any) -> list[Any]:
    """What a filter gives one by one, as JSON has it. Raises TypeError for anything else."""
    if not isinstance(value, _Iterable):
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
    return list(value)
