"""Requests of the engine, its events, and the messages that carry both between server and runner.

Plain data, shared with every process that takes part. A frame is a length (u32), the id of the request
(u64), and that many bytes of msgpack.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import deque
from typing import Final, Generic, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from puna.chat.answers.parts import CallDelta as CallDelta
from puna.chat.templates.messages import Chat, Insert
from puna.errors import PunaError, RequestError, RunnerError
from puna.grammar.format import Format
from puna.kvcache.contents import CellCounts, Contents
from puna.options import AUTO, PUNA, AdapterFile, AdapterScale, Options, Placement

#: More samples of one prompt are a mistake, or an attack.
MAX_SAMPLES: Final = 128

#: Batch requests get what the interactive ones leave.
Priority = Literal["interactive", "batch"]


class WireMessage(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Base of everything that may cross a process border; `type` on the wire is the class name."""


#: What is to be continued: a text (control tokens in it are recognised, BOS is added as the model wants it),
#: token ids, taken as they are, or what becomes a text by the model's template.
Prompt = str | list[int] | Chat | Insert


class Generate(WireMessage, frozen=True):
    """Generate text: the one form a request has from the wire to the engine.

    Answered by `Prompted`, `Chunk`*, then one `Done` or `Failed` with the same `id`, which whoever sends it
    chooses. What is stated about the prompt (`template`, `context`, `think`) is used where templates are
    (`puna.conversation`); the engine itself takes text and tokens, and answers without `Prompted`.

    With `samples` over 1, that many continuations are generated of one prompt, sample i with a seed i larger
    than the one given; each ends with a `Done` or `Failed` of its own, and `sample` says whose an event is.
    With `progress`, `Evaluated`* come before the first `Chunk`. With `prompt_logprobs`, `Scored`* do; a
    `num_predict` of 0 then means that nothing is generated, where otherwise it means as many as without.

    With a `format`, no token is drawn with which the answer (what follows thinking) could not become one; it
    is one if it ends by itself.
    """

    id: int = 0
    prompt: Prompt = ""
    options: Options = Options()  # without `stop`, texts end at the template's stop strings
    template: str = ""  # instead of the model file's own
    parser: str = ""  # the name of how answers are read, in Ollama's words; empty: as the template says
    stream_calls: bool = False  # a call's arguments come as they are written, not when it is complete
    context: list[int] | None = None  # tokens to put before the prompt
    format: Format | None = None  # the shape the answer has
    images: list[bytes] = []  # files; of a prompt that is text, in which `[img-N]` stands for them
    think: bool | str | None = None  # whether, or how hard; where it is set, thinking is told from text
    truncate: bool = True
    shift: bool = True
    logprobs: bool = False
    top_logprobs: int = 0
    sampled_logprobs: bool = False  # of generated tokens, as they were drawn, instead of the model's own
    ignore_eos: bool = False
    samples: int = 1
    prompt_logprobs: bool = False  # with `top_logprobs` alternatives
    progress: bool = False  # say after each step how far the prompt is
    cache_prompt: bool = True  # take what earlier requests have left behind, and leave something behind
    lora: list[AdapterScale] | None = None  # adapters it is computed with; None: those of the model
    priority: Priority = "interactive"
    client: str = ""  # who asks: waiting requests of several clients take turns


class Embed(WireMessage, frozen=True):
    """Make a vector of each of `inputs`. Answered by an `Embedded` or `Failed` for each, in any order.

    Inputs are as in `Generate`. A vector is made of the model's hidden states as it was trained for, or as
    `pooling` says ("mean", "cls", "last"). It is cut to its first `dimensions` values (0: all), then made
    1 long.

    With a `query`, the inputs are documents, and what a reranker makes of each is one value: how likely it is
    that the document answers the query, 0 to 1.
    """

    inputs: list[str | list[int]]
    id: int = 0
    num_ctx: int = 0  # tokens of an input; 0: as many as the model was loaded for
    truncate: bool = True  # drop the end of what is too long
    normalize: bool = True
    dimensions: int = 0
    pooling: str | None = None
    query: str | None = None
    lora: list[AdapterScale] | None = None
    cache_prompt: bool = True
    priority: Priority = "interactive"
    client: str = ""


class TopLogprob(msgspec.Struct, frozen=True):
    """One alternative at a position; `bytes` because a token may be half a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True):
    """The natural log-probability, of the raw logits unless asked otherwise, of a token and the best."""

    token: str
    logprob: float
    bytes: list[int]
    top: list[TopLogprob] = []


class Prompted(WireMessage, frozen=True):
    """The prompt a request came to, before anything is made of it.

    `tokens` begin with those of the request's `context`. Where the prompt is scored, its text begins at
    token `begin`, and when that is the first, it is spelled `first`.
    """

    id: int
    text: str
    tokens: list[int]
    begin: int = 0
    first: str = ""


class Chunk(WireMessage, frozen=True):
    """Output that is final: never half a character, never the start of a stop string or of a model's markup.

    `thinking` comes before the text, and `calls` come after it. `tokens` and `logprobs` belong to the tokens
    whose text begins in this chunk, or begins to be held back with it.
    """

    id: int
    text: str
    thinking: str = ""
    calls: list[CallDelta] = []
    tokens: list[int] = []
    logprobs: list[TokenLogprob] = []
    sample: int = 0


class Scored(WireMessage, frozen=True):
    """How likely the next tokens of the prompt were, each after all before it.

    The first token of a prompt comes after nothing: it has no log-probability and is None.
    """

    id: int
    tokens: list[int]
    logprobs: list[TokenLogprob | None]
    sample: int = 0


class Evaluated(WireMessage, frozen=True):
    """`done` of the `total` tokens of the prompt are evaluated, `cached` of them by earlier requests.

    The others took `duration` nanoseconds so far.
    """

    id: int
    done: int
    total: int
    cached: int
    duration: int


class Done(WireMessage, frozen=True):
    """End of a generation. Counts in tokens, durations in nanoseconds."""

    id: int
    reason: str  # "stop" or "length"
    prompt_eval_count: int
    prompt_eval_duration: int
    eval_count: int  # includes the end token and tokens cut by a stop string
    eval_duration: int
    cached: int = 0  # prompt tokens taken from the cache instead of evaluated
    truncated: int = 0  # prompt tokens dropped because the prompt did not fit, messages left out among them
    shifted: int = 0  # tokens dropped from the context while generating
    stop: str | None = None  # the stop string that ended it, if one did
    # With `logprobs`, of the tokens that ended it and are in no chunk: the end token, or a stop string's.
    ending: list[TokenLogprob] = []
    drafted: int = 0  # tokens that were guessed
    accepted: int = 0  # of these, those that came true
    drafted_by: str = ""  # "prompt", "draft" or "mtp", as in `speculate`; "format": what that forces alone
    sample: int = 0


class Embedded(WireMessage, frozen=True):
    """The vector of input `sample`. Counts in tokens."""

    id: int
    vector: bytes  # little-endian float32
    prompt_eval_count: int  # without those that were dropped
    cached: int = 0  # of these, taken from the cache instead of evaluated
    truncated: int = 0  # dropped because the input did not fit
    sample: int = 0


class Failed(WireMessage, frozen=True):
    """A request failed; `kind` is a class of `puna.errors`."""

    id: int
    kind: str
    message: str
    sample: int = 0

    @classmethod
    def of(cls, id: int, error: PunaError) -> Failed:
        return cls(id=id, kind=error.kind, message=str(error))


Event = Prompted | Evaluated | Scored | Chunk | Done | Embedded | Failed


_HEADER = struct.Struct("<IQ")
_encoder = msgspec.msgpack.Encoder()

T = TypeVar("T")


def pack(message: WireMessage) -> bytes:
    """`message` as one frame. Raises `RequestError` when it cannot be one."""
    try:
        body = _encoder.encode(message)
    except (OverflowError, RecursionError, UnicodeError) as error:
        # JSON knows larger numbers, deeper nesting and other strings than msgpack.
        raise RequestError(f"the request cannot be passed to the model: {error}") from error
    if len(body) > MAX_FRAME_BYTES:
        raise RequestError(
            f"a message of {len(body)} bytes ({type(message).__name__}) cannot be passed between the server "
            f"and the model's process; {MAX_FRAME_BYTES} are allowed: send less in one request"
        )
    return _HEADER.pack(len(body), getattr(message, "id", 0)) + body


class Frame(Generic[T]):
    """A message as it arrived, of request `id`; decoding it is left to whoever has the time."""

    def __init__(self, id: int, body: bytes, decoder: msgspec.msgpack.Decoder[T]) -> None:
        self.id = id
        self.size_bytes = len(body)
        self._body = body
        self._decoder = decoder

    def message(self) -> T:
        """Raises `RunnerError` if it is none that is expected here."""
        try:
            return self._decoder.decode(self._body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise RunnerError(f"a frame is no message: {error}") from error


class Unpacker(Generic[T]):
    """Cuts received bytes into frames with messages of the union `kind`."""

    def __init__(self, kind: type[T] | object) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame[T]]:
        """Add received bytes; returns the frames completed by them.

        Raises `RunnerError` when a frame is announced that is too long: the stream is then lost.
        """
        self._buffer += data
        frames = []
        while len(self._buffer) >= _HEADER.size:
            length, request_id = _HEADER.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                raise RunnerError(
                    f"a frame of {length} bytes was announced; at most {MAX_FRAME_BYTES} are allowed"
                )
            end = _HEADER.size + length
            if len(self._buffer) < end:
                break
            body = bytes(memoryview(self._buffer)[_HEADER.size : end])
            frames.append(Frame(request_id, body, self._decoder))
            del self._buffer[:end]
        return frames


class Channel(Generic[T]):
    """A blocking socket that carries messages; any thread may send, one receives."""

    def __init__(self, sock: socket.socket, receives: type[T] | object) -> None:
        self._sock = sock
        self._sending = threading.Lock()
        self._unpacker: Unpacker[T] = Unpacker(receives)
        self._ready: deque[Frame[T]] = deque()

    def send(self, message: WireMessage) -> None:
        """Send one message. Raises `RequestError` as `pack` does, `OSError` when the other side is gone."""
        frame = pack(message)
        with self._sending:
            self._sock.sendall(frame)

    def receive(self) -> Frame[T] | None:
        """The next frame, or None when the other side has closed."""
        while not self._ready:
            data = self._sock.recv(1 << 16)
            if not data:
                return None
            self._ready += self._unpacker.feed(data)
        return self._ready.popleft()


#: Exit statuses of a runner that cannot go on: memory could not be had, or what it does cannot be relied on.
OUT_OF_MEMORY = 12
IN_DOUBT = 13

#: A longer message is refused where it is made; one that is announced is a broken peer.
MAX_FRAME_BYTES = 256 * 1024 * 1024


# --- server to runner -------------------------------------------------------------


class Load(WireMessage, frozen=True):
    """The first message: load this model. After `Refused` there may be another.

    Answered by `LoadingProgress`*, then `Loaded`, `Refused` or `Failed(id=0)`.
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


class Cancel(WireMessage, frozen=True):
    """Stop generating or embedding `id`. Answered by nothing: a cancelled request is forgotten."""

    id: int


class Render(WireMessage, frozen=True):
    """What the prompt of `request` comes to. Answered by `Prompted` with the `id` of this message."""

    id: int
    request: Generate


class Ping(WireMessage, frozen=True):
    """Answered by `Pong` at once, also while a step is being computed."""

    id: int


class Grow(WireMessage, frozen=True):
    """Let requests have `num_ctx` tokens, without loading again. Answered by `Grown`, or `Failed`."""

    id: int
    num_ctx: int
    reserved: int = 0  # as in `Load`


class Inspect(WireMessage, frozen=True):
    """Answered by `Inspected` after the current step."""

    id: int


# --- runner to server -------------------------------------------------------------


class LoadingProgress(WireMessage, frozen=True):
    """Loading: `done` of `total` bytes of weights are in place."""

    done: int
    total: int


class Loaded(WireMessage, frozen=True):
    """The model is ready."""

    context_length: int  # tokens per sequence in force, after clamping to what the model was trained for
    parallel: int
    weight_bytes: int
    cache_bytes: int
    kernels: str = ""  # what computes: the instruction set of the kernels, numpy or (llama.cpp's) ggml
    engine: str = PUNA  # which runs it
    vram_bytes: int = 0  # of the weights, on GPUs
    max_context: int = 0  # what `context_length` can grow to
    trained_context: int = 0  # more is never given; 0: unknown
    exact_context: bool = False  # whether answers depend on the `num_ctx` it was loaded with
    warnings: tuple[str, ...] = ()  # what whoever uses the model should know


class Grown(WireMessage, frozen=True):
    """What of `Loaded` is another now."""

    id: int
    context_length: int
    cache_bytes: int

    def of(self, loaded: Loaded) -> Loaded:
        """What was `loaded`, as it is now."""
        return replace(loaded, context_length=self.context_length, cache_bytes=self.cache_bytes)


class Refused(WireMessage, frozen=True):
    """The model needs `needed` bytes of memory, and `available` are free (0: unknown)."""

    message: str
    needed: int
    available: int


class Pong(WireMessage, frozen=True):
    """`active` requests run or wait; the current step began `step_age_s` seconds ago (0 when idle)."""

    id: int
    active: int
    running: int  # of the active ones
    step_age_s: float
    cache_bytes: int  # memory provided for the caches so far
    cells: list[CellCounts]
    evicted: int  # cells finished requests had to give up for others, since the model was loaded


class Inspected(WireMessage, frozen=True):
    """What the model's caches hold."""

    id: int
    caches: list[Contents]


ToRunner = Load | Generate | Embed | Cancel | Render | Ping | Grow | Inspect
FromRunner = (
    LoadingProgress
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
