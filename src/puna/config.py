"""Settings from the environment: `PUNA_X`, falling back to Ollama's variable `OLLAMA_X`."""

from __future__ import annotations

import os
from pathlib import Path


def env(name: str, default: str = "") -> str:
    """Value of `PUNA_<name>`, else `OLLAMA_<name>`, else `default`; without surrounding spaces and quotes."""
    for prefix in ("PUNA_", "OLLAMA_"):
        value = os.environ.get(prefix + name)
        if value is not None and value.strip():
            return value.strip().strip("\"'")
    return default


def env_bool(name: str, default: bool = False) -> bool:
    """A boolean setting: on unless the value is `0`, `f`, `false`, `no` or `off`; `default` if empty."""
    value = env(name)
    return default if not value else value.lower() not in ("0", "f", "false", "no", "off")


def env_int(name: str, default: int) -> int:
    """An integer setting; `default` if absent or malformed."""
    try:
        return int(env(name) or default)
    except ValueError:
        return default


def home() -> Path:
    """The folder of Puna's own files (history, logs): `PUNA_HOME`, default `~/.puna`."""
    return Path(os.environ.get("PUNA_HOME") or Path.home() / ".puna").expanduser()


def models_dir() -> Path:
    """The folder of the model store: `PUNA_MODELS`, default `~/.ollama/models`, shared with Ollama."""
    return Path(env("MODELS") or Path.home() / ".ollama" / "models").expanduser()
