"""What is asked of the engine and what it answers: plain data, shared with every process that talks to it."""

from __future__ import annotations

import msgspec

from puna.errors import PunaError
from puna.options import Options


class Message(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Base of everything that may cross a process border; `type` on the wire is the class name."""


class Generate(Message, frozen=True):
    """Generate text. Answered by `Chunk`*, then one `Done` or `Failed` with the same `id`.

    `prompt` is text (control tokens in it are recognised, BOS is added as the model wants it) or
    token ids, taken as they are.
    """

    id: int
    prompt: str | list[int]
    options: Options = Options()
    truncate: bool = True
    shift: bool = True
    logprobs: bool = False
    top_logprobs: int = 0
    ignore_eos: bool = False


class TopLogprob(msgspec.Struct, frozen=True):
    """One alternative at a position; `bytes` because a token may be half a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True):
    """The log-probability (natural, of the raw logits) of a generated token, and the best alternatives."""

    token: str
    logprob: float
    bytes: list[int]
    top: list[TopLogprob] = []


class Chunk(Message, frozen=True):
    """Text that is final: never half a character, never the start of a stop string.

    `tokens` and `logprobs` belong to the tokens whose text begins in this chunk.
    """

    id: int
    text: str
    tokens: list[int] = []
    logprobs: list[TokenLogprob] = []


class Done(Message, frozen=True):
    """End of a generation. Counts in tokens, durations in nanoseconds."""

    id: int
    reason: str  # "stop" or "length"
    prompt_eval_count: int
    prompt_eval_duration: int
    eval_count: int  # includes the end token and tokens cut by a stop string
    eval_duration: int
    cached: int = 0  # prompt tokens taken from the cache instead of evaluated
    truncated: int = 0  # prompt tokens dropped because the prompt did not fit
    shifted: int = 0  # tokens dropped from the context while generating
    stop: str | None = None  # the stop string that ended it, if one did


class Failed(Message, frozen=True):
    """A request failed; `kind` is a class of `puna.errors`."""

    id: int
    kind: str
    message: str

    @classmethod
    def of(cls, id: int, error: PunaError) -> Failed:
        return cls(id=id, kind=error.kind, message=str(error))


Event = Chunk | Done | Failed
