"""Settings from the environment: `PUNA_X`, falling back to Ollama's variable `OLLAMA_X`.

A malformed value counts as absent, with one warning that names the variable, the value and the default used
instead.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

#: Variables of the tests and of the build, which Puna does not read.
_OTHERS = ("PUNA_TEST_", "PUNA_BUILD_", "PUNA_PORTABLE")

_ON = ("1", "t", "true", "yes", "on")
_OFF = ("0", "f", "false", "no", "off")

_log = logging.getLogger(__name__)


def find(name: str) -> tuple[str, str]:
    """Return the variable that sets `name`, `PUNA_<name>` or `OLLAMA_<name>`, and its value.

    The value has no surrounding spaces and quotes. Both are empty when neither variable is set.
    """
    for variable in (f"PUNA_{name}", f"OLLAMA_{name}"):
        value = os.environ.get(variable)
        if value is not None and value.strip():
            return variable, value.strip().strip("\"'")
    return "", ""


def env(name: str, default: str = "") -> str:
    """Return `PUNA_<name>`, else `OLLAMA_<name>`, else `default`, without surrounding spaces and quotes."""
    return find(name)[1] or default


def setting(name: str, parse: Callable[[str], T], default: T, instead: str | None = None) -> T:
    """Return the setting `name` parsed by `parse`, or `default` if it is absent or `parse` raises ValueError.

    The warning quotes the error, which says what the value must be, and the default, spelled as `instead`.
    """
    variable, text = find(name)
    if not text:
        return default
    try:
        return parse(text)
    except ValueError as error:
        warn_once(f"{variable}={text}: {error}; using {default if instead is None else instead}")
        return default


def env_bool(name: str, default: bool = False) -> bool:
    """Return a boolean setting: `1`, `true`, `yes`, `on` or `0`, `false`, `no`, `off`; or `default`."""
    return setting(name, _boolean, default, "1" if default else "0")


def env_int(name: str, default: int, *, least: int = 0, instead: str | None = None) -> int:
    """Return an integer setting, or `default` if it is absent, malformed or below `least`."""

    def parse(text: str) -> int:
        # Longer numbers make no sense here, and take long to parse.
        if not text.removeprefix("-").isdecimal() or len(text) > 18:
            raise ValueError("must be an integer")
        if int(text) < least:
            raise ValueError(f"must be at least {least}")
        return int(text)

    return setting(name, parse, default, instead)


def _boolean(text: str) -> bool:
    if text.lower() in _OFF:
        return False
    if text.lower() in _ON or text.isdecimal():  # Ollama's variables have levels such as 2
        return True
    raise ValueError(f"must be one of {', '.join(_ON)}, or {', '.join(_OFF)}")


@cache
def warn_once(text: str) -> None:
    """Log a warning, but only the first time in this process."""
    _log.warning(text)


def unknown_variables(known: Collection[str]) -> list[str]:
    """Return a sentence for each unknown variable `PUNA_...`, with the nearest `known` name."""
    own = (name for name in sorted(os.environ) if name.startswith("PUNA_") and not name.startswith(_OTHERS))
    return [f"{name} is not a setting of Puna{_nearest(name, known)}" for name in own if name not in known]


def _nearest(name: str, known: Collection[str]) -> str:
    from difflib import get_close_matches

    # The common prefix would make any two names look alike.
    names = {other.removeprefix("PUNA_"): other for other in known}
    near = get_close_matches(name.removeprefix("PUNA_"), names, n=1)
    return f" (did you mean {names[near[0]]}?)" if near else ""


def path_of(text: str) -> Path:
    """Return the path written as `text`, with `~` expanded if such a user exists."""
    return Path(os.path.expanduser(text))


def home() -> Path:
    """Return the folder of Puna's own files (history, logs): `PUNA_HOME`, default `~/.puna`."""
    return path_of(os.environ.get("PUNA_HOME") or "~/.puna")


def models_dir() -> Path:
    """Return the folder of the model store: `PUNA_MODELS`, default `~/.ollama/models`, shared with Ollama."""
    return path_of(env("MODELS") or "~/.ollama/models")
