"""Requests of the engine, its events, and the messages that carry both between server and runner.

Plain data, shared by all processes. A frame is a length (u32) and the id of the request (u64), both
little-endian, followed by that many bytes of msgpack.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from typing import Final, Generic, Literal, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from puna.chat.answers.parts import CallDelta as CallDelta
from puna.chat.templates.messages import Chat, Insert
from puna.errors import PunaError, RequestError, RunnerError
from puna.grammar.format import Format
from puna.kvcache.contents import CellCounts, Contents, Extents
from puna.options import AUTO, PUNA, AdapterFile, AdapterScale, Options, Placement

#: Maximum samples of one prompt; more are a mistake or an attack.
MAX_SAMPLES: Final = 128

#: Batch requests get the slots and cells that interactive ones leave free.
Priority = Literal["interactive", "batch"]


class WireMessage(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Base of all messages between processes; `type` on the wire is the class name."""


class Mixed(msgspec.Struct, frozen=True, tag=True):
    """A prompt of texts and token ids in turn. A text at its begin gets BOS if the model wants it."""

    parts: list[str | list[int]]


class Excerpt(msgspec.Struct, frozen=True):
    """A part of another file."""

    text: str
    filename: str = ""


class Infill(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Code with a gap, written with the tokens of the vocabulary for it and without a template.

    `line` is the text between `before` and the gap. `extra` are related parts of other files, the most
    important last, of which the first are left out if not all fit.
    """

    before: str
    after: str
    line: str = ""
    extra: list[Excerpt] = []


#: A prompt: a text (control tokens are recognised, and BOS is added if the model wants it), token ids, which
#: are used as they are, both in turn, a chat or insertion, which the model's template renders, or code with a
#: gap.
Prompt = str | list[int] | Mixed | Infill | Chat | Insert


class Generate(WireMessage, frozen=True):
    """A request to generate text, in the same form from the wire to the engine.

    Answered by `Prompted`, `Chunk`*, then one `Done` or `Failed`, with the sender's `id`. The fields
    `template`, `context`, `think` and `think_budget` are used where prompts are rendered
    (`puna.conversation`); the engine itself takes text and tokens, and sends no `Prompted`.

    `samples` is the number of continuations of the prompt; sample i adds i to the seed. Each ends with its
    own `Done` or `Failed`, and `sample` in events is its number. With `progress`, `Evaluated`* come before
    the first `Chunk`. With `prompt_logprobs`, `Scored`* do, and a `num_predict` of 0 generates nothing;
    otherwise 0 means no limit.

    With a `format`, tokens that it rules out are never drawn for the answer (the text after thinking); an
    answer that ends by itself matches the format.

    `resumed` has, for each sample, the tokens of an answer that another runner began with the same seed. They
    are repeated: drawn again, so that the sampler is in the same state, and used whatever is drawn. So the
    answer, with all its events, is the one that would have come without interruption.
    """

    id: int = 0
    prompt: Prompt = ""
    options: Options = Options()  # without `stop`, answers end at the template's stop strings
    template: str = ""  # replaces the one of the model file
    parser: str = ""  # Ollama's name of the parser of answers; empty: the template decides
    stream_calls: bool = False  # send arguments of calls as they are generated, not once the call is complete
    context: list[int] | None = None  # tokens to put before the prompt
    format: Format | None = None  # the format that the answer must match
    images: list[bytes] = []  # files; in a text prompt, `[img-N]` marks their places
    think: bool | str | None = None  # whether or how hard to think; if set, thinking is sent separately
    think_budget: int | None = None  # maximum tokens of thinking; None: by the level of `think`
    truncate: bool = True
    shift: bool = True
    logprobs: bool = False
    top_logprobs: int = 0
    sampled_logprobs: bool = False  # log-probabilities after sampling options, not the model's own
    ignore_eos: bool = False
    samples: int = 1
    prompt_logprobs: bool = False  # with `top_logprobs` alternatives
    progress: bool = False  # report the progress of the prompt after each step
    cache_prompt: bool = True  # reuse prefixes of earlier requests, and leave one for later ones
    lora: list[AdapterScale] | None = None  # adapters to use; None: those of the model
    priority: Priority = "interactive"
    client: str = ""  # clients with waiting requests take turns
    resumed: list[list[int]] = []  # no API sets it


class Embed(WireMessage, frozen=True):
    """A request for vectors of `inputs`. Answered by an `Embedded` or `Failed` for each input, in any order.

    Inputs are texts or tokens, as in `Generate`. Hidden states are pooled by `pooling` ("mean", "cls",
    "last"), or as the model was trained. A vector is cut to its first `dimensions` values (0: all), then
    normalised to length 1 (`normalize`).

    With a `query`, the inputs are documents, and a reranker's result for each is one value from 0 to 1: the
    probability that the document answers the query.
    """

    inputs: list[str | list[int]]
    id: int = 0
    num_ctx: int = 0  # maximum tokens of an input; 0: the context the model was loaded with
    truncate: bool = True  # drop the end of inputs that are too long
    normalize: bool = True
    dimensions: int = 0
    pooling: str | None = None
    query: str | None = None
    lora: list[AdapterScale] | None = None
    cache_prompt: bool = True
    priority: Priority = "interactive"
    client: str = ""


class Transcribe(WireMessage, frozen=True):
    """A request for the text of a recording.

    Answered by `Heard`, then by `Segment`* and `Heard` for each window of up to 30 s, then by one
    `Transcribed` or `Failed`.

    `samples` are those of `puna.audio.recording.Recording.data`: mono, 16,000 a second, little-endian int16.
    An empty `language` is detected; `translate` asks for English text whatever is spoken. A `prompt` is text
    that could precede the recording, for spelling and style. With a `temperature` of 0, a window whose text
    looks wrong is read again at higher temperatures, else every window at that one.
    """

    id: int = 0
    samples: memoryview = memoryview(b"")  # received without another copy
    language: str = ""  # a code of ISO 639, as "en"
    translate: bool = False
    prompt: str = ""
    temperature: float = 0.0
    seed: int = 0  # of drawing at temperatures above 0
    word_timestamps: bool = False  # whether segments have `words`
    priority: Priority = "interactive"
    client: str = ""


class TopLogprob(msgspec.Struct, frozen=True):
    """One alternative at a position; `bytes` because a token may be half a character."""

    token: str
    logprob: float
    bytes: list[int]
    id: int = -1


class TokenLogprob(msgspec.Struct, frozen=True):
    """Natural log-probabilities of a token and of the likeliest tokens, by default from the raw logits."""

    token: str
    logprob: float
    bytes: list[int]
    top: list[TopLogprob] = []
    id: int = -1


class BrokenPrefix(msgspec.Struct, frozen=True):
    """A prompt that differs early from its conversation's earlier ones, as those before it did.

    The first `token` tokens are the same, `text` follows them in this prompt, and `lost` tokens of the
    conversation cannot be reused.
    """

    token: int
    text: str
    lost: int

    def __str__(self) -> str:
        return f"prefix broken at token {self.token} by {self.text!r}: {self.lost} tokens cannot be reused"


class Prompted(WireMessage, frozen=True):
    """The rendered prompt of a request, before it is evaluated.

    `tokens` begin with the request's `context`. If the prompt is scored, its text begins at token `begin`,
    and `first` is the text of that token unless another one precedes it. `broken` is set if prompts of its
    conversation keep changing early. `blocks` are digests (`puna.prefix_blocks`) as little-endian u64, if
    `Render` wants them.
    """

    id: int
    text: str
    tokens: list[int]
    blocks: bytes = b""
    begin: int = 0
    first: str = ""
    broken: BrokenPrefix | None = None
    sample: int = 0


class Chunk(WireMessage, frozen=True):
    """Final output, which never cuts a character and never includes stop strings or a model's markup.

    `thinking` precedes the text, and `calls` follow it. `tokens` and `logprobs` are of the tokens whose text
    begins in this chunk, or is held back after it.
    """

    id: int
    text: str
    thinking: str = ""
    calls: list[CallDelta] = []
    tokens: list[int] = []
    logprobs: list[TokenLogprob] = []
    sample: int = 0


class Scored(WireMessage, frozen=True):
    """Log-probabilities of the prompt's next tokens, each given all tokens before it.

    The first token of a prompt follows nothing, so it has None.
    """

    id: int
    tokens: list[int]
    logprobs: list[TokenLogprob | None]
    sample: int = 0


class Evaluated(WireMessage, frozen=True):
    """Progress of a prompt: `done` of `total` tokens are evaluated, `cached` of them by earlier requests.

    Evaluating the others has taken `duration` nanoseconds so far.
    """

    id: int
    done: int
    total: int
    cached: int
    duration: int


class Done(WireMessage, frozen=True):
    """The end of a generation. Counts are in tokens, durations in nanoseconds."""

    id: int
    reason: str  # "stop" or "length"
    prompt_eval_count: int
    prompt_eval_duration: int
    eval_count: int  # includes the end token and tokens cut by a stop string
    eval_duration: int
    cached: int = 0  # prompt tokens taken from the cache instead of evaluated
    heard: int = 0  # prompt tokens that are rows of recordings
    truncated: int = 0  # prompt tokens dropped because the prompt did not fit, dropped messages included
    shifted: int = 0  # tokens dropped from the context while generating
    stop: str | None = None  # the stop string that ended the generation, if any
    # With `logprobs`: those of final tokens that are in no chunk (the end token, or those of a stop string).
    ending: list[TokenLogprob] = []
    drafted: int = 0  # draft tokens
    accepted: int = 0  # draft tokens that were accepted
    thought: int = 0  # generated tokens of thinking, without its tags
    drafted_by: str = ""  # "prompt", "draft" or "mtp", as in `speculate`; "format": forced tokens only
    sample: int = 0
    resumed: int = 0  # tokens of `Generate.resumed` that were repeated, not counted as drafts
    diverged: int = 0  # those of them in whose place this engine would have used another token


class Embedded(WireMessage, frozen=True):
    """The vector of input `sample`. Counts are in tokens."""

    id: int
    vector: bytes  # little-endian float32
    prompt_eval_count: int  # without dropped tokens
    cached: int = 0  # tokens taken from the cache instead of evaluated
    truncated: int = 0  # tokens dropped because the input did not fit
    sample: int = 0


class Heard(WireMessage, frozen=True):
    """Progress of a transcription: the first `done_s` of `total_s` seconds are transcribed.

    The first comes when the `language` is known, with `done_s` 0.
    """

    id: int
    language: str  # code of the language that is spoken, "en" for models that know no other
    done_s: float
    total_s: float


class Word(msgspec.Struct, frozen=True):
    """A word of a transcription, with the punctuation beside it."""

    text: str  # begins with a space where words are separated by them
    start_s: float
    end_s: float


class Segment(WireMessage, frozen=True):
    """A part of a transcription, usually a sentence or two. Values after `tokens` are of its whole window.

    `compression_ratio` is that of the window's text with zlib, high for text that repeats itself.
    """

    id: int
    number: int  # of the segment, from 0
    start_s: float
    end_s: float
    text: str  # begins with a space where words are separated by them
    tokens: list[int]  # with the timestamps around the text
    seek: int  # begin of the window, in hundredths of a second
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: list[Word] = []  # if the request asks for them


class Transcribed(WireMessage, frozen=True):
    """The end of a transcription. Counts are in tokens, durations in nanoseconds."""

    id: int
    language: str
    total_s: float  # of the recording
    prompt_eval_count: int  # of all windows' prompts, without audio
    eval_count: int  # generated, including those of windows that were read again
    duration: int  # since the request began to run


class Failed(WireMessage, frozen=True):
    """The failure of a request; `kind` is the name of a class in `puna.errors`."""

    id: int
    kind: str
    message: str
    sample: int = 0

    @classmethod
    def of(cls, id: int, error: PunaError) -> Failed:
        return cls(id=id, kind=error.kind, message=str(error))


class StepTotals(msgspec.Struct):
    """Steps since the model was loaded: what their time went on, and their tokens. Times in seconds."""

    steps: int = 0
    prompt_s: float = 0.0
    decode_s: float = 0.0
    sample_s: float = 0.0
    mask_s: float = 0.0  # waiting for the tokens that formats allow
    draft_s: float = 0.0
    image_s: float = 0.0
    other_s: float = 0.0
    prompt_tokens: int = 0  # evaluated
    cached_tokens: int = 0  # reused instead
    tokens: int = 0  # generated
    drafted: int = 0
    accepted: int = 0


class LiveSequence(msgspec.Struct, frozen=True, kw_only=True):
    """A sequence of the engine, or (`idle`) what a finished request left in the prefix cache."""

    row: int  # of the cache; -1 while waiting
    state: Literal["running", "held", "waiting", "idle"]
    tokens: int  # in the cache
    request: int = 0
    client: str = ""
    embeds: bool = False
    prompt: int = 0
    cached: int = 0
    generated: int = 0
    age_s: float = 0.0  # since it first ran


class LivePrefixNode(msgspec.Struct, frozen=True):
    """Inputs [begin, end) that all sequences below share; `rows` end here, and were reused `hits` times."""

    parent: int  # index of a node; -1: none
    begin: int
    end: int
    hits: int
    rows: list[int]


class LivePrefixes(msgspec.Struct, frozen=True):
    """The prefix tree, parents first, at most `MAX_LIVE_NODES` nodes, and how often it helped."""

    nodes: list[LivePrefixNode]
    hits: int
    misses: int
    reused_tokens: int
    evicted: int  # cells


#: Blocks of prompts that are reported, and of those no longer there.
MAX_REPORTED_BLOCKS: Final = 65_536
#: Nodes of a prefix tree that are shown.
MAX_LIVE_NODES: Final = 2000


class LiveState(msgspec.Struct, frozen=True):
    """The engine between two steps; `took_s` is the time that finding out has taken from it."""

    totals: StepTotals
    sequences: list[LiveSequence]
    caches: list[Extents]
    prefixes: LivePrefixes
    took_s: float


Event = Prompted | Evaluated | Scored | Chunk | Done | Embedded | Heard | Segment | Transcribed | Failed


_HEADER = struct.Struct("<IQ")
_encoder = msgspec.msgpack.Encoder()

T = TypeVar("T")


def pack(message: WireMessage) -> bytearray:
    """Return `message` as one frame. Raises `RequestError` if it is too long or cannot be encoded."""
    try:
        frame = bytearray()  # filled in place, since a recording is large
        _encoder.encode_into(message, frame, _HEADER.size)
    except (OverflowError, RecursionError, UnicodeError) as error:
        # JSON allows larger numbers, deeper nesting and more kinds of strings than msgpack.
        raise RequestError(f"the request cannot be passed to the model: {error}") from error
    length = len(frame) - _HEADER.size
    if length > MAX_FRAME_BYTES:
        raise RequestError(
            f"a message of {length} bytes ({type(message).__name__}) cannot be passed between the server "
            f"and the model's process; {MAX_FRAME_BYTES} are allowed: send less in one request"
        )
    _HEADER.pack_into(frame, 0, length, getattr(message, "id", 0))
    return frame


class Frame(Generic[T]):
    """A received message of request `id`, not yet decoded, so that another thread can decode it."""

    def __init__(self, id: int, body: bytes | memoryview, decoder: msgspec.msgpack.Decoder[T]) -> None:
        self.id = id
        self.size_bytes = len(body)
        self._body = body
        self._decoder = decoder

    def message(self) -> T:
        """Decode the message. Raises `RunnerError` if it is malformed or of an unexpected type."""
        try:
            return self._decoder.decode(self._body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise RunnerError(f"a frame is not a valid message: {error}") from error


class Unpacker(Generic[T]):
    """Splits received bytes into frames with messages of the union `kind`."""

    def __init__(self, kind: type[T] | object) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame[T]]:
        """Add received bytes, and return the frames they complete.

        Raises `RunnerError` when a frame is too long; the stream is then unusable.
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
            if len(self._buffer) == end:  # as after a long frame, which is not copied then
                frames.append(Frame(request_id, memoryview(self._buffer)[_HEADER.size :], self._decoder))
                self._buffer = bytearray()
                break
            body = bytes(memoryview(self._buffer)[_HEADER.size : end])
            frames.append(Frame(request_id, body, self._decoder))
            del self._buffer[:end]
        return frames


class BlockingSocket(Protocol):
    """A blocking socket that one thread may receive from while another one sends."""

    def recv(self, size: int, /) -> bytes:
        """Return what has arrived, at most `size` bytes; nothing when the other side has closed."""

    def sendall(self, data: bytes | bytearray, /) -> None:
        """Send all of `data`."""


class Channel(Generic[T]):
    """A connection for messages. Any thread may send; only one receives."""

    def __init__(self, sock: BlockingSocket, receives: type[T] | object) -> None:
        self._sock = sock
        self._sending = threading.Lock()
        self._unpacker: Unpacker[T] = Unpacker(receives)
        self._ready: deque[Frame[T]] = deque()

    def send(self, message: WireMessage) -> None:
        """Send one message. Raises `RequestError` as `pack` does, and `OSError` if the other side is gone."""
        frame = pack(message)
        with self._sending:
            self._sock.sendall(frame)

    def receive(self) -> Frame[T] | None:
        """Return the next frame, or None when the other side has closed."""
        while not self._ready:
            data = self._sock.recv(1 << 16)
            if not data:
                return None
            self._ready += self._unpacker.feed(data)
        return self._ready.popleft()


#: Exit statuses of a runner that cannot continue: out of memory, or its state is in doubt.
OUT_OF_MEMORY = 12
IN_DOUBT = 13

#: The sender refuses longer messages, so a longer frame means that the peer is broken.
MAX_FRAME_BYTES = 256 * 1024 * 1024


# --- server to runner -------------------------------------------------------------


class StageAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of a split model other than the first: its node, its layers, and where it can be reached."""

    node: str
    begin: int
    end: int
    address: str
    port: int = 0  # known once it has loaded


class SplitLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a model that one process of several loads: stage number `number`, the first being 0.

    `stages` are those after the first. Connections between them begin with `secret`.
    """

    number: int
    stages: tuple[StageAddress, ...]
    secret: bytes
    any_kernels: bool = False  # stages may use kernels that differ in their last bits

    @property
    def layers(self) -> tuple[int, int]:
        """The layers [begin, end) of this process."""
        if not self.number:
            return 0, self.stages[0].begin
        own = self.stages[self.number - 1]
        return own.begin, own.end


class Load(WireMessage, frozen=True):
    """The first message: load this model. Another may follow after `Refused`.

    Answered by `LoadingProgress`*, then `Loaded`, `Refused` or `Failed(id=0)`.
    """

    path: str
    num_ctx: int  # tokens per sequence; 0: the trained context, if memory allows
    parallel: int = 1
    num_batch: int = 512
    num_thread: int = 0
    kv_cache_type: str = "f16"
    draft: str = ""  # path of a draft model
    projector: str = ""  # path of the vision tower's own file, if it has one
    adapters: tuple[AdapterFile, ...] = ()
    speculate: str | None = None  # drafting mode of requests that do not set one
    reserved: int = 0  # bytes of memory to leave for the caches of other models
    allowed: int | None = None  # bytes that the process may take besides; None: all that are free
    engine: str = AUTO
    placement: Placement = Placement()
    split: SplitLoad | None = None  # load only a part of the model


class Cancel(WireMessage, frozen=True):
    """Stop generating or embedding `id`. Not answered: a cancelled request is forgotten."""

    id: int


class FinishThinking(WireMessage, frozen=True):
    """End the thinking of `id` now, so that its answer begins. Not answered."""

    id: int


class Render(WireMessage, frozen=True):
    """Render the prompt of `request`. Answered by `Prompted` with the `id` of this message.

    With `blocks`, the answer has the digests of the prompt's blocks.
    """

    id: int
    request: Generate
    blocks: bool = False


class Tokenize(WireMessage, frozen=True):
    """Turn `text` into tokens. Answered by `Tokenized`, or `Failed`.

    `add_special` adds the tokens that the model expects around a text, and `parse_special` recognises the
    spellings of control tokens.
    """

    id: int
    text: str
    add_special: bool = True
    parse_special: bool = True


class Detokenize(WireMessage, frozen=True):
    """Turn `tokens` into text. Answered by `Detokenized`, or `Failed`."""

    id: int
    tokens: list[int]


class Ping(WireMessage, frozen=True):
    """Ask how busy the runner is. Answered by `Pong` at once, even during a step."""

    id: int


class Grow(WireMessage, frozen=True):
    """Raise the maximum context to `num_ctx` without reloading. Answered by `Grown`, or `Failed`."""

    id: int
    num_ctx: int
    reserved: int = 0  # as in `Load`
    allowed: int | None = None  # as in `Load`, from now on


class Inspect(WireMessage, frozen=True):
    """Ask for the contents of the model's caches. Answered by `Inspected` after the current step."""

    id: int


class Watch(WireMessage, frozen=True):
    """Ask what the engine is doing. Answered by `Watched` after the current step."""

    id: int


class ReportPrefixes(WireMessage, frozen=True):
    """Ask which prompts can be resumed. Answered by `PrefixReport` after the current step.

    `since` is the version of the last report of this process, 0 for a report of everything.
    """

    id: int
    since: int = 0


# --- runner to server -------------------------------------------------------------


class LoadingProgress(WireMessage, frozen=True):
    """Progress of loading: `done` of `total` bytes of weights."""

    done: int
    total: int


class Loaded(WireMessage, frozen=True):
    """The model is ready."""

    context_length: int  # tokens per sequence, at most the trained context
    parallel: int
    weight_bytes: int
    cache_bytes: int
    kernels: str = ""  # instruction set of the kernels, "numpy", or "ggml" with llama.cpp
    engine: str = PUNA  # the engine that runs the model
    vram_bytes: int = 0  # weights on GPUs, with Puna's own engine the caches too
    device: str = ""  # where Puna's own engine computes, "CPU", "GPU 0" or several with their layers
    on_gpu: int = 0  # layers that it computes on GPUs
    fitting: int = 0  # layers that GPUs had the memory for when it was loaded, whatever `num_gpu` said
    gpus: int = 0  # GPUs that it could be on
    max_context: int = 0  # the maximum to which `context_length` can grow
    trained_context: int = 0  # upper limit of every context; 0: unknown
    exact_context: bool = False  # answers depend on the `num_ctx` the model was loaded with
    warnings: tuple[str, ...] = ()  # for users of the model
    port: int = 0  # where a stage of a split model other than the first awaits the others


class StageCost(msgspec.Struct, frozen=True):
    """Sums over all passes of a split model for one stage."""

    rows: int  # of batches
    compute_us: int
    received_bytes: int


class Grown(WireMessage, frozen=True):
    """The changed fields of `Loaded`."""

    id: int
    context_length: int
    cache_bytes: int
    vram_bytes: int = 0

    def of(self, loaded: Loaded) -> Loaded:
        """Return `loaded` with these fields."""
        return replace(
            loaded,
            context_length=self.context_length,
            cache_bytes=self.cache_bytes,
            vram_bytes=self.vram_bytes,
        )


class Refused(WireMessage, frozen=True):
    """Too little memory: the model needs `needed` bytes, and `available` bytes are free (0: unknown)."""

    message: str
    needed: int
    available: int


class Tokenized(WireMessage, frozen=True):
    id: int
    tokens: list[int]


class Detokenized(WireMessage, frozen=True):
    """The text of tokens, the bytes that each adds to it, and the spelling of each in the vocabulary."""

    id: int
    text: str
    pieces: list[bytes]
    spellings: list[str]


class Pong(WireMessage, frozen=True):
    """The state of a runner, with its `active` requests and the age of the current step (0 when idle)."""

    id: int
    active: int
    running: int  # active requests that are not waiting
    step_age_s: float
    cache_bytes: int  # memory the caches have taken so far
    cells: list[CellCounts]
    evicted: int  # cells of finished requests evicted since loading
    memory_bytes: int  # of the process
    stages: list[StageCost] = []  # of a split model


class Inspected(WireMessage, frozen=True):
    """The contents of the model's caches."""

    id: int
    caches: list[Contents]


class Watched(WireMessage, frozen=True):
    """The state of the engine."""

    id: int
    state: LiveState


class PrefixReport(WireMessage, frozen=True):
    """The beginnings of prompts that can be resumed, as changes since an earlier version.

    Digests of blocks (`puna.prefix_blocks`) as little-endian u64, at most `MAX_REPORTED_BLOCKS`, of the most
    recently used sequences. A `whole` report replaces all earlier ones, because the changes are unknown or
    everything was asked for. Digests may be added that were known, and removed that were not.
    """

    id: int
    version: int
    added: bytes
    removed: bytes
    whole: bool


ToRunner = (
    Load
    | Generate
    | Embed
    | Transcribe
    | Cancel
    | FinishThinking
    | Render
    | Tokenize
    | Detokenize
    | Ping
    | Grow
    | Inspect
    | Watch
    | ReportPrefixes
)
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
    | Heard
    | Segment
    | Transcribed
    | Tokenized
    | Detokenized
    | Failed
    | Pong
    | Grown
    | Inspected
    | Watched
    | PrefixReport
)
