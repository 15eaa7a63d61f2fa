"""Solar Open: an answer is several messages, each of one kind."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from puna.chat.answers.answer import Answer
from puna.chat.answers.families.named_json import NamedJson
from puna.chat.answers.family import AnswerFamily, Reading, Syntax
from puna.chat.answers.parts import Form, Tags
from puna.chat.answers.reader import Steps, search

_BEGIN: Final = "<|begin|>assistant"
_THINK: Final = "<|think|>"
_CONTENT: Final = "<|content|>"
_END: Final = "<|end|>"
_ENDS: Final = (_END, "<|flush|>", "<|calls|>")


@dataclass(frozen=True)
class SolarCalls(NamedJson):
    """`<|tool_call:begin|>id<|tool_call:name|>f<|tool_call:args|>{...}<|tool_call:end|>`, in one message."""

    opening: str = "<|tool_call:begin|>"
    before_name: str = "<|tool_call:name|>"
    after_name: str = "<|tool_call:args|>"
    closing: str = "<|tool_call:end|>"
    section: str = "<|tool_calls|>"
    section_end: str = "<|calls|>"

    @property
    def form(self) -> Form:
        return replace(super().form, said=_CONTENT)


@dataclass(frozen=True)
class SolarOpen(AnswerFamily):
    """Thinking, text and calls are messages that begin with a tag of their own."""

    calls: Syntax | None = field(default_factory=SolarCalls)
    dropped: tuple[str, ...] = (_BEGIN, _CONTENT, *_ENDS)

    @property
    def thinking(self) -> Tags | None:
        # A format applies from the message of text on.
        return Tags(_BEGIN, _CONTENT)

    @property
    def thinking_before_calls(self) -> Tags:
        return Tags(_THINK, _END + _BEGIN)

    def closing(self, reading: Reading, *, again: bool = False) -> str:
        chooses = bool(reading.tools) and not again
        return _END + _BEGIN + ("" if reading.forces_calls or chooses else _CONTENT)

    def read(self, answer: Answer, reading: Reading) -> Steps[None]:
        reader, calls = answer.reader, self.calls
        assert calls is not None
        ends = (*self.dropped, *calls.openings)  # of a thought
        if reading.prompt.endswith(_THINK):
            yield from answer.thought(*ends)
        while True:
            openings = calls.openings if answer.may_call else ()
            found = yield from reader.until(search(_THINK, *self.dropped, *openings), answer.say)
            if not found:
                return
            if found in openings:
                yield from answer.attempt(found, calls.read(answer, found))
                continue
            reader.take(len(found))
            if found == _THINK:
                yield from answer.thought(*ends)
