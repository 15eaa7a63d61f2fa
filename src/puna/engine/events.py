"""What is asked of the engine and what it answers: plain data, shared with every process that talks to it."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from puna.errors import PunaError
from puna.grammar.format import Format
from puna.markup.parts import CallDelta as CallDelta
from puna.options import AdapterScale, Options
from puna.prompt.messages import Chat, Insert

#: More samples of one prompt are a mistake, or an attack.
MOST_SAMPLES: Final = 128

#: Batch requests get what the interactive ones leave.
Priority = Literal["interactive", "batch"]


class Message(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Base of everything that may cross a process border; `type` on the wire is the class name."""


#: What is to be continued: a text (control tokens in it are recognised, BOS is added as the model wants it),
#: token ids, taken as they are, or what becomes a text by the model's template.
Prompt = str | list[int] | Chat | Insert


class Generate(Message, frozen=True):
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


class Embed(Message, frozen=True):
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


class Prompted(Message, frozen=True):
    """The prompt a request came to, before anything is made of it.

    `tokens` begin with those of the request's `context`. Where the prompt is scored, its text begins at
    token `begin`, and when that is the first, it is spelled `first`.
    """

    id: int
    text: str
    tokens: list[int]
    begin: int = 0
    first: str = ""


class Chunk(Message, frozen=True):
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


class Scored(Message, frozen=True):
    """How likely the next tokens of the prompt were, each after all before it.

    The first token of a prompt comes after nothing: it has no log-probability and is None.
    """

    id: int
    tokens: list[int]
    logprobs: list[TokenLogprob | None]
    sample: int = 0


class Evaluated(Message, frozen=True):
    """`done` of the `total` tokens of the prompt are evaluated, `cached` of them by earlier requests.

    The others took `duration` nanoseconds so far.
    """

    id: int
    done: int
    total: int
    cached: int
    duration: int


class Done(Message, frozen=True):
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


class Embedded(Message, frozen=True):
    """The vector of input `sample`. Counts in tokens."""

    id: int
    vector: bytes  # little-endian float32
    prompt_eval_count: int  # without those that were dropped
    cached: int = 0  # of these, taken from the cache instead of evaluated
    truncated: int = 0  # dropped because the input did not fit
    sample: int = 0


class Failed(Message, frozen=True):
    """A request failed; `kind` is a class of `puna.errors`."""

    id: int
    kind: str
    message: str
    sample: int = 0

    @classmethod
    def of(cls, id: int, error: PunaError) -> Failed:
        return cls(id=id, kind=error.kind, message=str(error))


Event = Prompted | Evaluated | Scored | Chunk | Done | Embedded | Failed
