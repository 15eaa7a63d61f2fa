"""Puna: run open language models on your own machine.

`puna.load("demo")` returns a model that generates and chats; see `puna.library`. For the command line see
`puna --help`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from puna.errors import PunaError

if TYPE_CHECKING:
    from puna.library import (
        AsyncStream,
        Call,
        Chunk,
        Completion,
        Format,
        MCPServer,
        Model,
        RequestOptions,
        Segment,
        Stats,
        Stream,
        Transcript,
        TranscriptStream,
        load,
    )

__version__ = "1.0.0"
__all__ = [
    "AsyncStream",
    "Call",
    "Chunk",
    "Completion",
    "Format",
    "MCPServer",
    "Model",
    "PunaError",
    "RequestOptions",
    "Segment",
    "Stats",
    "Stream",
    "Transcript",
    "TranscriptStream",
    "load",
]


def __getattr__(name: str) -> Any:
    # Imported on first use, because the library imports the engine, which takes a while.
    if name in __all__:
        from puna import library

        return getattr(library, name)
    raise AttributeError(f"module 'puna' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
