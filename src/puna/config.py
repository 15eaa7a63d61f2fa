"""Settings from the environment: `PUNA_X`, falling back to Ollama's `OLLAMA_X` of the same meaning."""

from __future__ import annotations

import os
from pathlib import Path


def env(name: str, default: str = "") -> str:
    """Value of `PUNA_<name>`, else `OLLAMA_<name>`, else `default`; stripped of blanks and quotes."""
    for prefix in ("PUNA_", "OLLAMA_"):
        value = os.environ.get(prefix + name)
        if value is not None and value.strip():
            return value.strip().strip("\"'")
    return default


def env_bool(name: str, default: bool = False) -> bool:
    """A switch: anything but an empty value, `0`, `f`, `false`, `no` and `off` counts as on."""
    value = env(name)
    return default if not value else value.lower() not in ("0", "f", "false", "no", "off")


def env_int(name: str, default: int) -> int:
    """An integer; a malformed value counts as absent."""
    try:
        return int(env(name) or default)
    except ValueError:
        return default


def home() -> Path:
    """Puna's own files (history, logs): `PUNA_HOME`, default `~/.puna`."""
    return Path(os.environ.get("PUNA_HOME") or Path.home() / ".puna").expanduser()


def models_dir() -> Path:
    """The model store: `PUNA_MODELS`/`OLLAMA_MODELS`, default `~/.ollama/models` (shared with Ollama)."""
    return Path(env("MODELS") or Path.home() / ".ollama" / "models").expanduser()
