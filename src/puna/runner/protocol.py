"""Messages between the server and a runner process: msgpack frames on a socketpair.

Frames are described in `puna.runner.frames`. Every message is a tagged struct (`type` is the
class name). Requests carry an `id` chosen by the server; all replies to it carry the same
`id`. The runner leaves when its end of the socket closes.
Generating and embedding are spoken of in the engine's own words (`puna.engine.events`).
"""

from __future__ import annotations

from msgspec.structs import replace

from puna.engine.events import (
    CallDelta,
    Chunk,
    Done,
    Embed,
    Embedded,
    Evaluated,
    Failed,
    Generate,
    Message,
    Prompted,
    Scored,
    TokenLogprob,
    TopLogprob,
)
from puna.kvcache.contents import CellCounts, Contents
from puna.options import AUTO, PUNA, AdapterFile, Placement

__all__ = [
    "IN_DOUBT",
    "MAX_FRAME_BYTES",
    "OUT_OF_MEMORY",
    "CallDelta",
    "Cancel",
    "Chunk",
    "Done",
    "Embed",
    "Embedded",
    "Evaluated",
    "Failed",
    "FromRunner",
    "Generate",
    "Inspect",
    "Inspected",
    "Load",
    "Loaded",
    "Ping",
    "Pong",
    "Progress",
    "Prompted",
    "Refused",
    "Render",
    "Scored",
    "ToRunner",
    "TokenLogprob",
    "TopLogprob",
]

#: Exit statuses of a runner that cannot go on: memory could not be had, or what it does cannot be relied on.
OUT_OF_MEMORY = 12
IN_DOUBT = 13

#: A longer message is refused where it is made; one that is announced is a broken peer.
MAX_FRAME_BYTES = 256 * 1024 * 1024


# --- server to runner -------------------------------------------------------------


class Load(Message, frozen=True):
    """The first message: load this model. After `Refused` there may be another.

    Answered by `Progress`*, then `Loaded`, `Refused` or `Failed(id=0)`.
    """

    path: str
    num_ctx: int  # tokens per sequence; 0: what the model was trained for, as far as memory goes
    parallel: int = 1
    num_batch: int = 512
    num_thread: int = 0
    kv_cache_type: str = "f16"
    draft: str = ""  # path of a model that guesses
    projector: str = ""  # path of the vision tower, where it has a file of its own
    adapters: tuple[AdapterFile, ...] = ()
    speculate: str | None = None  # how requests guess that do not say
    reserved: int = 0  # bytes of memory to leave, which other models' caches may come to take
    engine: str = AUTO
    placement: Placement = Placement()  # for llama.cpp


class Cancel(Message, frozen=True):
    """Stop generating or embedding `id`. Answered by nothing: a cancelled request is forgotten."""

    id: int


class Render(Message, frozen=True):
    """What the prompt of `request` comes to. Answered by `Prompted` with the `id` of this message."""

    id: int
    request: Generate


class Ping(Message, frozen=True):
    """Answered by `Pong` at once, also while a step is being computed."""

    id: int


class Grow(Message, frozen=True):
    """Let requests have `num_ctx` tokens, without loading again. Answered by `Grown`, or `Failed`."""

    id: int
    num_ctx: int
    reserved: int = 0  # as in `Load`


class Inspect(Message, frozen=True):
    """Answered by `Inspected` after the current step."""

    id: int


# --- runner to server -------------------------------------------------------------


class Progress(Message, frozen=True):
    """Loading: `done` of `total` bytes of weights are in place."""

    done: int
    total: int


class Loaded(Message, frozen=True):
    """The model is ready."""

    context_length: int  # tokens per sequence in force, after clamping to what the model was trained for
    parallel: int
    weight_bytes: int
    cache_bytes: int
    kernels: str = ""  # what computes: the instruction set of the kernels, numpy or (llama.cpp's) ggml
    engine: str = PUNA  # which runs it
    vram_bytes: int = 0  # of the weights, on GPUs
    most_context: int = 0  # what `context_length` can grow to
    trained_context: int = 0  # more is never given; 0: unknown
    exact_context: bool = False  # whether answers depend on the `num_ctx` it was loaded with
    warnings: tuple[str, ...] = ()  # what whoever uses the model should know


class Grown(Message, frozen=True):
    """What of `Loaded` is another now."""

    id: int
    context_length: int
    cache_bytes: int

    def of(self, loaded: Loaded) -> Loaded:
        """What was `loaded`, as it is now."""
        return replace(loaded, context_length=self.context_length, cache_bytes=self.cache_bytes)


class Refused(Message, frozen=True):
    """The model needs `needed` bytes of memory, and `available` are free (0: unknown)."""

    message: str
    needed: int
    available: int


class Pong(Message, frozen=True):
    """`active` requests run or wait; the current step began `step_age_s` seconds ago (0 when idle)."""

    id: int
    active: int
    running: int  # of the active ones
    step_age_s: float
    cache_bytes: int  # memory provided for the caches so far
    cells: list[CellCounts]
    evicted: int  # cells finished requests had to give up for others, since the model was loaded


class Inspected(Message, frozen=True):
    """What the model's caches hold."""

    id: int
    caches: list[Contents]


ToRunner = Load | Generate | Embed | Cancel | Render | Ping | Grow | Inspect
FromRunner = (
    Progress
    | Loaded
    | Refused
    | Prompted
    | Evaluated
    | Scored
    | Chunk
    | Done
    | Embedded
    | Failed
    | Pong
    | Grown
    | Inspected
)
