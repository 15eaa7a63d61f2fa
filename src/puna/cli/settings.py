"""The settings of `puna run`, from command-line options and `/set` commands."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from puna.errors import RequestError
from puna.options import THINK_LEVELS, Options


@dataclass
class RunSettings:
    """The model, its options and the display of the answer. None leaves a choice to the server."""

    model: str
    options: dict[str, Any] = field(default_factory=dict)
    system: str | None = None
    format: str | dict[str, Any] | None = None
    think: bool | str | None = None
    think_budget: int | None = None
    keep_alive: str | int | None = None
    hide_thinking: bool = False
    word_wrap: bool = True
    verbose: bool = False
    truncate: bool = True  # embedding models only
    dimensions: int | None = None  # embedding models only
    insecure: bool = False  # allow pulling a missing model without TLS
    mcp: Sequence[str] = ()  # MCP servers whose tools the model may call
    mcp_allow: Sequence[str] = ()  # tools that need no confirmation

    def request(self) -> dict[str, Any]:
        """Return the fields common to `/api/generate` and `/api/chat`."""
        fields: dict[str, Any] = {"model": self.model}
        chosen = {
            "format": self.format,
            "think": self.think,
            "think_budget": self.think_budget,
            "keep_alive": self.keep_alive,
        }
        fields |= {name: value for name, value in chosen.items() if value is not None}
        if self.options:
            fields["options"] = dict(self.options)
        return fields


def parse_think(text: str) -> bool | str:
    """Parse the value of `--think`. Raises RequestError."""
    if text in THINK_LEVELS:
        return text
    if text in ("true", "false"):
        return text == "true"
    levels = ", ".join(THINK_LEVELS[:-1])
    raise RequestError(
        f'invalid value for --think: "{text}" (must be true, false, {levels}, or {THINK_LEVELS[-1]})'
    )


def parse_format(text: str) -> str | dict[str, Any]:
    """Parse the value of `--format`: `json`, or a JSON schema. Raises RequestError."""
    if text in ("", "json"):
        return text
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise RequestError(f"--format must be 'json' or a JSON schema; invalid JSON: {error}") from None
    if not isinstance(schema, dict):
        raise RequestError(f"--format must be 'json' or a JSON schema (an object), not {text}")
    return schema


def parse_keep_alive(text: str) -> str | int:
    """Parse the value of `--keepalive`: a duration for the server to parse, or whole seconds."""
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else text


def merge_options(texts: Iterable[str], named: Mapping[str, Any]) -> dict[str, Any]:
    """Merge options written `NAME=VALUE` with those of `named` that are not None, which take precedence.

    Raises RequestError.
    """
    options = dict(map(parse_option, texts))
    options |= {name: value for name, value in named.items() if value is not None}
    Options.merge(options)  # reports values out of range before anything is started
    return options


def parse_option(text: str) -> tuple[str, Any]:
    """Parse an option written `NAME=VALUE` into its name and typed value. Raises RequestError."""
    name, separator, value = text.partition("=")
    if not separator:
        raise RequestError(f"--option must have the form NAME=VALUE, not {text!r}")
    return name.strip(), parse_values(name.strip(), [value.strip()])


def parse_values(name: str, values: Iterable[str]) -> Any:
    """Return the typed value of option `name`: any number of `values` for `stop`, else exactly one.

    Raises RequestError for a wrong type or a value out of range.
    """
    from puna.store.recipe import parse_parameter

    given = list(values)
    if name == "stop":
        value: Any = given
    elif len(given) != 1:
        raise RequestError(f"parameter '{name}' takes exactly one value, not {len(given)}")
    else:
        value = parse_parameter(name, given[0])
    Options.merge({name: value})
    return value
