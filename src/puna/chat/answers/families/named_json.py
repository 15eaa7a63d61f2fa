"""Calls with the name first, followed by the arguments as JSON."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from puna.chat.answers.answer import Answer
from puna.chat.answers.families.json_calls import JsonCalls, arguments_of, calls, skip_closing
from puna.chat.answers.family import AnswerFamily, Reading, Syntax
from puna.chat.answers.parts import Form
from puna.chat.answers.reader import BrokenError, Steps

#: Characters of a name.
MAX_NAME: Final = 256

#: The call's number after its name.
_NUMBER: Final = re.compile(r":\d+$")


@dataclass(frozen=True)
class NamedJson(Syntax):
    """`<function=f>{...}</function>`, and the like, perhaps several within a section."""

    opening: str
    after_name: str
    closing: str
    section: str = ""  # around all calls
    section_end: str = ""
    before_name: str = ""  # anything between `opening` and this is skipped

    @property
    def openings(self) -> tuple[str, ...]:
        return (self.section, self.opening) if self.section else (self.opening,)

    @property
    def form(self) -> Form:
        return Form(
            self.opening + self.before_name,
            self.after_name,
            self.closing,
            self.section,
            self.section_end,
        )

    def read(self, answer: Answer, opening: str) -> Steps[None]:
        reader = answer.reader
        if opening == self.section:
            reader.take(len(opening))
            yield from reader.space()
        while True:
            yield from reader.expect(self.opening)
            yield from self.call(answer)
            yield from skip_closing(answer, self.closing)
            if not self.section:
                return
            yield from reader.space()
            if (yield from reader.skip(self.section_end)):
                return
            if not (yield from reader.comes(self.opening)):
                return

    def call(self, answer: Answer) -> Steps[None]:
        """Read one call, after its opening tag."""
        reader = answer.reader
        if self.before_name:
            yield from reader.before(self.before_name, most=MAX_NAME)
        name = yield from reader.before(self.after_name, most=MAX_NAME)
        yield from reader.space()
        yield from arguments_of(answer, name.strip())
        answer.end_call()


@dataclass(frozen=True)
class KimiCalls(NamedJson):
    """The name is a call's id: `functions.f:0`."""

    @property
    def form(self) -> Form:
        form = super().form
        return replace(form, before=f"{form.before}functions.", after=f":0{form.after}")

    def call(self, answer: Answer) -> Steps[None]:
        id = (yield from answer.reader.before(self.after_name, most=MAX_NAME)).strip()
        yield from answer.reader.space()
        yield from arguments_of(answer, _NUMBER.sub("", id).removeprefix("functions."))
        answer.end_call()


_FENCE: Final = "```json"


@dataclass(frozen=True)
class DeepSeekCalls(NamedJson):
    """`f<｜tool▁sep｜>{...}` since V3.1; before that `function<｜tool▁sep｜>f` and JSON between fences."""

    fenced: bool = False

    @property
    def form(self) -> Form:
        form = super().form
        if not self.fenced:
            return form
        return replace(
            form,
            before=f"{form.before}function{self.after_name}",
            after=f"\n{_FENCE}\n",
            closing=f"\n```{self.closing}",
            between="\n",
        )

    def call(self, answer: Answer) -> Steps[None]:
        reader = answer.reader
        name = (yield from reader.before(self.after_name, most=MAX_NAME)).strip()
        yield from reader.space()
        if (yield from reader.peek()) == "{":
            yield from arguments_of(answer, name)
            answer.end_call()
            return
        name = (yield from reader.before("\n", most=MAX_NAME)).strip()
        yield from reader.space()
        yield from reader.expect(_FENCE)
        yield from reader.space()
        yield from arguments_of(answer, name)
        answer.end_call()
        yield from skip_closing(answer, "```")


@dataclass(frozen=True)
class MistralCalls(Syntax):
    """`[TOOL_CALLS]f[ARGS]{...}` for each call; earlier `[TOOL_CALLS] [{"name": "f", ...}]` for all."""

    listed: bool = False  # in the model's training; both are read

    @property
    def openings(self) -> tuple[str, ...]:
        return ("[TOOL_CALLS]",)

    @property
    def form(self) -> Form:
        if self.listed:
            return JsonCalls("[TOOL_CALLS] ", listed=True).form
        return Form("[TOOL_CALLS]", "[ARGS]")

    def read(self, answer: Answer, opening: str) -> Steps[None]:
        reader = answer.reader
        reader.take(len(opening))
        yield from reader.space()
        kind = yield from reader.peek()
        if kind in ("[", "{"):
            yield from calls(answer)
            return
        name = yield from reader.before("[ARGS]", "{", most=MAX_NAME, keep=("{",))
        name = name.partition("[CALL_ID]")[0].strip()
        yield from reader.space()
        yield from arguments_of(answer, name)
        answer.end_call()


#: Begins each message of Functionary 3.2; the first line says which function it is for.
_MESSAGE: Final = ">>>"


@dataclass(frozen=True)
class FunctionaryCalls(Syntax):
    """`>>>f` and a line break, then JSON; `>>>all` begins text."""

    @property
    def openings(self) -> tuple[str, ...]:
        return (_MESSAGE,)

    @property
    def form(self) -> Form:
        # The first `>>>` is the end of the prompt.
        return Form("", "\n", between=f"\n{_MESSAGE}", said="all\n")

    def read(self, answer: Answer, opening: str) -> Steps[None]:
        answer.reader.take(len(opening))
        yield from _message_to(answer)


@dataclass(frozen=True)
class Functionary(AnswerFamily):
    """Functionary 3.2, whose prompt ends in the `>>>` of the answer's first message."""

    def read(self, answer: Answer, reading: Reading) -> Steps[None]:
        if reading.prompt.endswith(_MESSAGE):
            yield from answer.attempt("", _message_to(answer))
        yield from super().read(answer, reading)


def _message_to(answer: Answer) -> Steps[None]:
    """Read the recipient and, if it is a function, its arguments. Raises `BrokenError`."""
    reader = answer.reader
    name = yield from reader.before("\n", most=MAX_NAME)
    if name == "all":
        return
    if not answer.may_call or (yield from reader.peek()) != "{":
        raise BrokenError
    yield from arguments_of(answer, name)
    answer.end_call()
    yield from reader.space()
