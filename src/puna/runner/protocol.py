"""Messages between the server and a runner process: msgpack frames on a socketpair.

A frame is a little-endian u32 length and that many bytes of msgpack. Every message is a
tagged struct (`type` is the class name). Requests carry an `id` chosen by the server; all
replies to it carry the same `id`. The runner leaves when its end of the socket closes.
"""

from __future__ import annotations

import msgspec

from puna.options import Options

#: A longer frame is a broken peer, not a message.
MAX_FRAME_BYTES = 512 * 1024 * 1024


class Message(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Base of all messages."""


# --- server to runner -------------------------------------------------------------


class Load(Message):
    """First message: load this model. Answered by `Progress`*, then `Loaded` or `Failed(id=0)`."""

    path: str
    num_ctx: int
    parallel: int = 1
    num_batch: int = 512
    num_thread: int = 0
    kv_cache_type: str = "f16"


class Generate(Message):
    """Generate text. Answered by `Chunk`*, then `Done` or `Failed`.

    `prompt` is text (tokenised with special tokens parsed, BOS added) or token ids.
    """

    id: int
    prompt: str | list[int]
    options: Options = Options()
    truncate: bool = True
    shift: bool = True
    logprobs: bool = False
    top_logprobs: int = 0
    ignore_eos: bool = False


class Cancel(Message):
    """Stop generating `id`. Answered by nothing: a cancelled request is forgotten."""

    id: int


class Tokenize(Message):
    """Answered by `Tokens`."""

    id: int
    text: str
    add_special: bool = True
    parse_special: bool = True


class Detokenize(Message):
    """Answered by `Text`."""

    id: int
    ids: list[int]


class Ping(Message):
    """Answered by `Pong` from the message loop, `step_age_s` telling how long the engine is in its current step."""

    id: int


# --- runner to server -------------------------------------------------------------


class Progress(Message):
    """Loading: `done` of `total` bytes of weights are in place."""

    done: int
    total: int


class Loaded(Message):
    """The model is ready."""

    context_length: int  # tokens per sequence in force, after clamping to what the model was trained for
    parallel: int
    weight_bytes: int
    cache_bytes: int


class TopLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top: list[TopLogprob] = []


class Chunk(Message):
    """Text that is final: never half a character, never the start of a stop string."""

    id: int
    text: str
    tokens: list[int] = []
    logprobs: list[TokenLogprob] = []


class Done(Message):
    """End of a generation. Durations in nanoseconds."""

    id: int
    reason: str  # "stop" or "length"
    prompt_eval_count: int
    prompt_eval_duration: int
    eval_count: int
    eval_duration: int
    cached: int = 0  # prompt tokens taken from the cache instead of evaluated
    truncated: int = 0  # prompt tokens dropped because the prompt did not fit
    shifted: int = 0  # tokens dropped from the context while generating
    stop: str | None = None  # the stop string that ended it, if one did


class Failed(Message):
    """A request (or the load, `id` 0) failed; `kind` is a class of `puna.errors`."""

    id: int
    kind: str
    message: str


class Tokens(Message):
    id: int
    ids: list[int]


class Text(Message):
    id: int
    text: str


class Pong(Message):
    id: int
    active: int
    step_age_s: float


ToRunner = Load | Generate | Cancel | Tokenize | Detokenize | Ping
FromRunner = Progress | Loaded | Chunk | Done | Failed | Tokens | Text | Pong
