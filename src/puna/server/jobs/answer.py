"""An answer built from its parts in the order of their arrival: thinking, text and calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from puna import gojson
from puna.protocol import CallDelta, Chunk, TokenLogprob
from puna.server.jobs.service import Echo, Finished

Kind = Literal["thinking", "text", "call"]


@dataclass
class AnswerSegment:
    """A stretch of thinking or text, or one call, whose text is the JSON of its arguments."""

    number: int  # within the answer
    kind: Kind
    id: str = ""  # of calls only, like the next two
    name: str = ""
    call_index: int = 0
    parts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of a text

    @property
    def text(self) -> str:
        return "".join(self.parts)

    @property
    def arguments(self) -> dict[str, Any] | None:
        """The arguments of a call; None if they are no object, because the answer ended within them."""
        try:
            value = gojson.loads(self.text or "{}")
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    @property
    def unfinished(self) -> str:
        """The text to show for a call whose arguments are incomplete, where they must be complete."""
        return self.name + self.text


@dataclass(frozen=True)
class SegmentDelta:
    """The beginning of a segment, more of its `text`, or its end."""

    what: Literal["begin", "more", "end"]
    segment: AnswerSegment
    text: str = ""
    logprobs: Sequence[TokenLogprob] = ()


class AnswerBuilder:
    """Builder of one answer from the parts passed to `feed`; without `thinking`, thinking is left out."""

    def __init__(self, *, thinking: bool = True) -> None:
        self.segments: list[AnswerSegment] = []
        self.logprobs: list[TokenLogprob] = []  # of all tokens, including those of thinking
        self.echo: Echo | None = None
        self._end: Finished | None = None
        self._thinking = thinking
        self._open: AnswerSegment | None = None
        self._waiting: list[TokenLogprob] = []  # log-probabilities received before their text

    @property
    def end(self) -> Finished:
        assert self._end is not None, "the answer has not ended"
        return self._end

    @property
    def thinking(self) -> str:
        """All thinking of the answer."""
        return self._joined("thinking")

    @property
    def text(self) -> str:
        """All text of the answer."""
        return self._joined("text")

    @property
    def calls(self) -> list[AnswerSegment]:
        """All calls of the answer."""
        return [segment for segment in self.segments if segment.kind == "call"]

    def _joined(self, kind: Kind) -> str:
        return "".join(segment.text for segment in self.segments if segment.kind == kind)

    def feed(self, part: Chunk | Echo | Finished) -> list[SegmentDelta]:
        """Add the next part, and return how it changes the segments."""
        match part:
            case Echo():
                self.echo = part
                return []
            case Finished():
                self._end = part
                return self._close()
        self.logprobs += part.logprobs
        deltas: list[SegmentDelta] = []
        if not part.thinking:
            self._waiting += part.logprobs
        elif self._thinking:
            deltas += self._add("thinking", part.thinking)
        if part.text:
            deltas += self._add("text", part.text)
        for call in part.calls:
            deltas += self._add("call", call.arguments, call)
        return deltas

    def _close(self) -> list[SegmentDelta]:
        closed, self._open = self._open, None
        return [] if closed is None else [SegmentDelta("end", closed)]

    def _add(self, kind: Kind, text: str, call: CallDelta | None = None) -> list[SegmentDelta]:
        deltas: list[SegmentDelta] = []
        segment = self._open
        if segment is None or segment.kind != kind or (call and call.index != segment.call_index):
            deltas += self._close()
            segment = self._open = AnswerSegment(len(self.segments), kind)
            if call:
                segment.id, segment.name, segment.call_index = call.id, call.name, call.index
            self.segments.append(segment)
            deltas.append(SegmentDelta("begin", segment))
        logprobs: list[TokenLogprob] = []
        if kind == "text":
            logprobs, self._waiting = self._waiting, []
            segment.logprobs += logprobs
        if text:
            segment.parts.append(text)
            deltas.append(SegmentDelta("more", segment, text, logprobs))
        return deltas
