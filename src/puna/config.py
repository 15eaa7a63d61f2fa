"""Settings from the environment: `PUNA_X`, falling back to Ollama's variable `OLLAMA_X`.

A value that cannot be read counts as absent, and a warning says so once: which variable, which value, and
what is used instead.
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
_OTHERS = ("PUNA_TEST_", "PUNA_BUILD_")

_ON = ("1", "t", "true", "yes", "on")
_OFF = ("0", "f", "false", "no", "off")

_log = logging.getLogger(__name__)


def find(name: str) -> tuple[str, str]:
    """The variable that sets `name`, `PUNA_<name>` or `OLLAMA_<name>`, and its value.

    The value is without surrounding spaces and quotes; both are empty when neither is set.
    """
    for variable in (f"PUNA_{name}", f"OLLAMA_{name}"):
        value = os.environ.get(variable)
        if value is not None and value.strip():
            return variable, value.strip().strip("\"'")
    return "", ""


def env(name: str, default: str = "") -> str:
    """Value of `PUNA_<name>`, else `OLLAMA_<name>`, else `default`; without surrounding spaces and quotes."""
    return find(name)[1] or default


def setting(name: str, parse: Callable[[str], T], default: T, instead: str | None = None) -> T:
    """The setting `name` as `parse` reads it; `default` if it is absent, or if `parse` raises ValueError.

    The error says what the value must be, and `instead` how the warning spells the default.
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
    """A boolean setting: `1`, `true`, `yes`, `on` or `0`, `false`, `no`, `off`; `default` if absent."""
    return setting(name, _boolean, default, "1" if default else "0")


def env_int(name: str, default: int, *, least: int = 0, instead: str | None = None) -> int:
    """An integer setting; `default` if it is absent, malformed or below `least`."""

    def parse(text: str) -> int:
        # Longer numbers mean nothing here, and reading them would take a time of its own.
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
    """Log a warning, the first time in this process."""
    _log.warning(text)


def unknown_variables(known: Collection[str]) -> list[str]:
    """A sentence, with the nearest `known` name, for each other variable `PUNA_...` of the environment."""
    own = (name for name in sorted(os.environ) if name.startswith("PUNA_") and not name.startswith(_OTHERS))
    return [f"{name} is no setting of Puna{_nearest(name, known)}" for name in own if name not in known]


def _nearest(name: str, known: Collection[str]) -> str:
    from difflib import get_close_matches

    # What all names begin with would make any two of them look alike.
    names = {other.removeprefix("PUNA_"): other for other in known}
    near = get_close_matches(name.removeprefix("PUNA_"), names, n=1)
    return f" (did you mean {names[near[0]]}?)" if near else ""


def path_of(text: str) -> Path:
    """The path that somebody wrote as `text`, in which `~` is a home; of nobody's, it stays as it is."""
    return Path(os.path.expanduser(text))


def home() -> Path:
    """The folder of Puna's own files (history, logs): `PUNA_HOME`, default `~/.puna`."""
    return path_of(os.environ.get("PUNA_HOME") or "~/.puna")


def models_dir() -> Path:
    """The folder of the model store: `PUNA_MODELS`, default `~/.ollama/models`, shared with Ollama."""
    return path_of(env("MODELS") or "~/.ollama/models")
