"""Puna as a library: the same engine, in this process.

    import puna

    model = puna.load("demo")
    print(model.generate("Once upon a time", num_predict=50).text)
    for piece in model.chat([{"role": "user", "content": "Hi!"}], stream=True):
        print(piece.text, end="", flush=True)

Requests made at the same time (from threads, tasks, or as a list of prompts) run in one batch.
"""

from puna.grammar.format import Format
from puna.library.completion import Call, Completion, Stats
from puna.library.loading import load
from puna.library.model import Model
from puna.library.options import RequestOptions
from puna.library.recordings import Transcript, TranscriptStream
from puna.library.streams import AsyncStream, AsyncToolStream, Stream, ToolStream
from puna.mcp import MCPServer
from puna.protocol import Chunk, Segment, TokenLogprob, TopLogprob

__all__ = [
    "AsyncStream",
    "AsyncToolStream",
    "Call",
    "Chunk",
    "Completion",
    "Format",
    "MCPServer",
    "Model",
    "RequestOptions",
    "Segment",
    "Stats",
    "Stream",
    "TokenLogprob",
    "ToolStream",
    "TopLogprob",
    "Transcript",
    "TranscriptStream",
    "load",
]
