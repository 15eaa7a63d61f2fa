"""Answers that go on elsewhere: what a client has got already, and what is new to it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from msgspec.structs import replace

from puna.chat.answers.parts import CallDelta
from puna.protocol import Chunk, Done, Evaluated, Generate, Prompted, Scored

GenerateEvent = Prompted | Evaluated | Scored | Chunk | Done

#: Seeds that are drawn for requests without one; a second run needs the first one's.
_SEEDS = 1 << 31


@dataclass
class _Sent:
    """The amount of a sample that was sent: by all runs together, or by the current one."""

    text: int = 0  # characters
    thinking: int = 0
    calls: dict[int, int] = field(default_factory=dict)  # characters of arguments, by the call's index
    tokens: int = 0
    logprobs: int = 0
    scored: int = 0


@dataclass
class _Sample:
    tokens: list[int] = field(default_factory=list)  # that were sent
    sent: _Sent = field(default_factory=_Sent)
    again: _Sent = field(default_factory=_Sent)  # of it, by the current run
    done: bool = False


class Delivery:
    """The events of a request that may run several times, of which its client sees one.

    A later run repeats the tokens that were sent, so its events begin with the same content, cut into chunks
    in another way.
    """

    def __init__(self, request: Generate) -> None:
        if request.options.seed == -1:
            request = replace(request, options=replace(request.options, seed=secrets.randbelow(_SEEDS)))
        self._request = request
        self._samples = [_Sample() for _ in range(request.samples)]
        self._prompted = False

    @property
    def begun(self) -> bool:
        """Whether tokens of an answer were sent."""
        return any(sample.tokens for sample in self._samples)

    def run(self) -> Generate:
        """Return the request for another run, which repeats what was sent."""
        for sample in self._samples:
            sample.again = _Sent()
        if not self.begun:
            return self._request
        return replace(self._request, resumed=[list(sample.tokens) for sample in self._samples])

    def new(self, event: GenerateEvent) -> GenerateEvent | None:
        """Return what of an event of the current run is new to the client; None if nothing is."""
        sample = self._samples[event.sample] if not isinstance(event, Evaluated) else None
        match event:
            case Prompted():
                first, self._prompted = not self._prompted, True
                return event if first else None
            case Evaluated():
                return None if self.begun else event
            case Scored():
                assert sample is not None
                return _rest_of_scores(event, sample)
            case Chunk():
                assert sample is not None
                return None if sample.done else _rest_of_chunk(event, sample)
            case Done():
                assert sample is not None
                first, sample.done = not sample.done, True
                return event if first else None


def _rest_of_scores(event: Scored, sample: _Sample) -> Scored | None:
    known = _known(sample.again.scored, sample.sent.scored, len(event.tokens))
    sample.again.scored += len(event.tokens)
    sample.sent.scored = max(sample.sent.scored, sample.again.scored)
    if known == len(event.tokens):
        return None
    return replace(event, tokens=event.tokens[known:], logprobs=event.logprobs[known:])


def _rest_of_chunk(chunk: Chunk, sample: _Sample) -> Chunk | None:
    again, sent = sample.again, sample.sent
    text = chunk.text[_known(again.text, sent.text, len(chunk.text)) :]
    thinking = chunk.thinking[_known(again.thinking, sent.thinking, len(chunk.thinking)) :]
    tokens = chunk.tokens[_known(again.tokens, sent.tokens, len(chunk.tokens)) :]
    logprobs = chunk.logprobs[_known(again.logprobs, sent.logprobs, len(chunk.logprobs)) :]
    calls = [delta for call in chunk.calls if (delta := _rest_of_call(call, again, sent)) is not None]
    again.text += len(chunk.text)
    again.thinking += len(chunk.thinking)
    again.tokens += len(chunk.tokens)
    again.logprobs += len(chunk.logprobs)
    sent.text = max(sent.text, again.text)
    sent.thinking = max(sent.thinking, again.thinking)
    sent.tokens = max(sent.tokens, again.tokens)
    sent.logprobs = max(sent.logprobs, again.logprobs)
    sample.tokens += tokens
    if not (text or thinking or tokens or calls) and (
        chunk.text or chunk.thinking or chunk.tokens or chunk.calls
    ):
        return None
    return replace(chunk, text=text, thinking=thinking, tokens=tokens, logprobs=logprobs, calls=calls)


def _rest_of_call(delta: CallDelta, again: _Sent, sent: _Sent) -> CallDelta | None:
    index, length = delta.index, len(delta.arguments)
    named = index in sent.calls  # its id and name were sent
    known = _known(again.calls.get(index, 0), sent.calls.get(index, 0), length)
    again.calls[index] = again.calls.get(index, 0) + length
    sent.calls[index] = max(sent.calls.get(index, 0), again.calls[index])
    rest = delta.arguments[known:]
    if named and not rest:
        return None
    return CallDelta(index, arguments=rest) if named else replace(delta, arguments=rest)


def _known(again: int, sent: int, length: int) -> int:
    """Return how many of the next `length` items were sent before, if `again` of `sent` came again so far."""
    return min(max(sent - again, 0), length)
