"""Puna: run open language models on your own machine.

`puna.load("demo")` returns a model that generates and chats; see `puna.library`. For the command line see
`puna --help`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from puna.errors import PunaError

if TYPE_CHECKING:
    from puna.completions import Completion
    from puna.library import Model, load

__version__ = "0.1.0"
__all__ = ["Completion", "Model", "PunaError", "load"]


def __getattr__(name: str) -> Any:
    # Imported on use: the library imports torch, which takes a second.
    if name in ("Completion", "Model", "load"):
        from puna import library

        return getattr(library, name)
    raise AttributeError(f"module 'puna' has no attribute '{name}'")
