"""An answer as a list of thinking, texts and calls: whole, or numbered with begin and end of each part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from puna import gojson
from puna.protocol import CallDelta, TokenLogprob
from puna.server.jobs.backend import AnswerDelta


@dataclass(frozen=True)
class CompletedCall:
    """A tool call; `arguments` are JSON text, as the model wrote it."""

    index: int
    id: str
    name: str
    arguments: str

    def value(self) -> dict[str, Any] | None:
        """The arguments; None if they are no object, because the answer ended inside of them."""
        try:
            value = gojson.loads(self.arguments or "{}")
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    @property
    def text(self) -> str:
        """What a call that was never finished is shown as."""
        return self.name + self.arguments


class Calls:
    """Puts calls together. One is whole when anything else follows it, or the answer ends: then `flush`."""

    def __init__(self) -> None:
        self._first: CallDelta | None = None
        self._arguments: list[str] = []

    def feed(self, deltas: Sequence[CallDelta]) -> list[CompletedCall]:
        """The calls that are whole now."""
        whole: list[CompletedCall] = []
        for delta in deltas:
            if self._first is None or delta.index != self._first.index:
                whole += self.flush()
                self._first = delta
            self._arguments.append(delta.arguments)
        return whole

    def flush(self) -> list[CompletedCall]:
        """The call that was not yet told of, if there is one: nothing more belongs to it."""
        first, arguments = self._first, "".join(self._arguments)
        self._first, self._arguments = None, []
        return [] if first is None else [CompletedCall(first.index, first.id, first.name, arguments)]


Kind = Literal["thinking", "text", "call"]


@dataclass
class Segment:
    """One of them; a call has an id and a name, and its text are its arguments as far as they came."""

    number: int
    kind: Kind
    id: str = ""
    name: str = ""
    call_index: int = 0
    parts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of a text

    @property
    def text(self) -> str:
        return "".join(self.parts)

    @property
    def arguments(self) -> dict[str, Any] | None:
        """Those of a call; None if they are no object, because the answer ended inside of them."""
        return self._call.value()

    @property
    def unfinished(self) -> str:
        """What a call that was never finished is shown as, where its arguments must be whole."""
        return self._call.text

    @property
    def _call(self) -> CompletedCall:
        return CompletedCall(self.call_index, self.id, self.name, self.text)


@dataclass(frozen=True)
class SegmentDelta:
    """A segment begins, gets more `text`, or ends."""

    what: Literal["begin", "more", "end"]
    segment: Segment
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()


class Segments:
    """Splits one answer. Without `thinking`, what the model thinks is left out."""

    def __init__(self, *, thinking: bool = True) -> None:
        self.all: list[Segment] = []
        self._thinking = thinking
        self._open: Segment | None = None
        self._waiting: list[TokenLogprob] = []  # log-probabilities that came before their text

    @property
    def has_calls(self) -> bool:
        return any(segment.kind == "call" for segment in self.all)

    def feed(self, piece: AnswerDelta) -> Iterator[SegmentDelta]:
        if piece.thinking:
            if self._thinking:
                yield from self._more("thinking", piece.thinking)
        else:
            self._waiting += piece.logprobs
        if piece.text:
            yield from self._more("text", piece.text)
        for delta in piece.calls:
            yield from self._more("call", delta.arguments, delta)

    def finish(self) -> Iterator[SegmentDelta]:
        """The answer has ended."""
        if self._open is not None:
            yield SegmentDelta("end", self._open)
            self._open = None

    def _more(self, kind: Kind, text: str, call: CallDelta | None = None) -> Iterator[SegmentDelta]:
        here = self._open
        if here is None or here.kind != kind or (call is not None and call.index != here.call_index):
            yield from self.finish()
            here = Segment(len(self.all), kind)
            if call is not None:
                here.id, here.name, here.call_index = call.id, call.name, call.index
            self.all.append(here)
            self._open = here
            yield SegmentDelta("begin", here)
        logprobs: tuple[TokenLogprob, ...] = ()
        if kind == "text":
            logprobs, self._waiting = tuple(self._waiting), []
            here.logprobs += logprobs
        if text:
            here.parts.append(text)
            yield SegmentDelta("more", here, text, logprobs)
