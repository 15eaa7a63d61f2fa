"""C interface of llama.cpp as declared by llama-cpp-python, imported only when a model needs it."""

from __future__ import annotations

import importlib
import logging
from collections import deque
from functools import cache
from typing import Any, Final

from puna.errors import UnavailableError

_MIN_VERSION: Final = "0.3.36"

#: llama.cpp's log levels as those of `logging`, lowered because routine messages are of no interest.
_LEVELS: Final = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.INFO, 4: logging.WARNING}
_CONTINUED: Final = 5
_KEPT_LINES: Final = 3

_log = logging.getLogger("puna.llamacpp")


@cache
def bindings() -> Any:
    """Return the functions and constants of llama.h. Raises `UnavailableError`."""
    try:
        found = importlib.import_module("llama_cpp.llama_cpp")
    except Exception as error:  # for example, its libraries cannot be loaded
        raise UnavailableError(f"llama-cpp-python cannot be used: {error}") from error
    if not hasattr(found, "LLAMA_LOAD_MODE_MMAP"):
        raise UnavailableError(
            f"this llama-cpp-python is too old, {_MIN_VERSION} is needed: "
            "pip install --upgrade 'puna[llamacpp]'"
        )
    _listen(found)
    found.llama_backend_init()
    return found


class _Messages:
    """Messages of llama.cpp: passed to our log, and the latest errors kept for our own errors.

    They arrive from any thread, even inside each other: freeing a context logs too, and may happen during any
    garbage collection. So nothing is locked.
    """

    def __init__(self) -> None:
        self._errors: deque[str] = deque(maxlen=_KEPT_LINES)
        self._level = logging.DEBUG

    def hear(self, level: int, text: bytes, user_data: object) -> None:
        # Messages quote file contents, which may hold control characters.
        line = "".join(c if c.isprintable() else " " for c in text.decode(errors="replace")).strip()
        ours = self._level if level == _CONTINUED else _LEVELS.get(level, logging.DEBUG)
        self._level = ours
        if line.strip("."):
            _log.log(ours, "%s", line)
            if ours == logging.WARNING:
                self._errors.append(line)

    def take_errors(self) -> str:
        """Return the errors since the last call, and forget them."""
        text = "; ".join(list(self._errors))
        self._errors.clear()
        return text


_messages = _Messages()
_callbacks: list[Any] = []  # C keeps no reference to them


def _listen(found: Any) -> None:
    callback = found.llama_log_callback(_messages.hear)
    _callbacks.append(callback)
    found.llama_log_set(callback, None)


def complaint(otherwise: str) -> str:
    """Return llama.cpp's latest error messages, or `otherwise` if there are none."""
    return _messages.take_errors() or otherwise
