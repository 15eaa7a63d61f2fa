"""Calls whose parameters have their own tags, with values as plain text."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from typing import Any, Final, Literal

from puna.chat.answers.answer import Answer
from puna.chat.answers.families.json_calls import JsonCalls, calls, skip_closing
from puna.chat.answers.families.named_json import MAX_NAME
from puna.chat.answers.family import Syntax
from puna.chat.answers.json_text import parsed
from puna.chat.answers.parts import Form, ParameterForm
from puna.chat.answers.reader import BrokenError, Steps, search
from puna.chat.answers.tools import Tool, dumps


@dataclass(frozen=True)
class ParameterCalls(Syntax):
    """`<function=f><parameter=k>value</parameter></function>`, and the like, within a section.

    The tool's schema determines the types. A line break at either end of a value is not part of it, unless
    values are `exact`.
    """

    section: str  # around calls; may be empty
    section_end: str
    opening: str  # before the name
    after_name: str  # may be empty
    closing: str
    key: str  # before a parameter's name
    after_key: str
    value: str = ""  # before the value
    value_end: str = "</parameter>"
    breaks: Literal["values", "tags", ""] = "values"  # what the model puts on lines of its own
    exact: bool = False  # line breaks at the ends of a value are part of it
    string_attribute: bool = False  # `string="true"` after a parameter's name marks strings

    @property
    def openings(self) -> tuple[str, ...]:
        return tuple(text for text in (self.section, self.opening) if text)

    @property
    def form(self) -> Form:
        line = "\n" if self.breaks else ""
        within, between = (line, "") if self.breaks == "values" else ("", line)  # of values, of their tags
        after_key = f'" string="true"{self.after_key}' if self.string_attribute else self.after_key
        return Form(
            f"{self.opening}",
            self.after_name + (line if self.after_name != "\n" else ""),
            self.closing + line,
            f"{self.section}{line}" if self.section else "",
            self.section_end,
            parameters=ParameterForm(
                self.key,
                after_key + between,
                quotes=(self.value + within, f"{within}{self.value_end}{line}"),
                untyped=True,
                exact=self.exact,
            ),
        )

    def read(self, answer: Answer, opening: str) -> Steps[None]:
        reader = answer.reader
        if opening != self.section:
            reader.take(len(opening))
            yield from self._call(answer)
            yield from skip_closing(answer, self.section_end)
            return
        reader.take(len(opening))
        yield from reader.space()
        yield from reader.expect(self.opening)
        yield from self.rest(answer)

    def rest(self, answer: Answer, *, known_only: bool = False) -> Steps[None]:
        """Read a section's calls after the first opening tag; with `known_only`, only of known tools."""
        reader = answer.reader
        while True:
            yield from self._call(answer, known_only=known_only)
            yield from reader.space()
            if (yield from reader.skip(self.section_end)) or not (yield from reader.skip(self.opening)):
                return

    def _call(self, answer: Answer, *, known_only: bool = False) -> Steps[None]:
        reader = answer.reader
        ends = (self.after_name, self.key, self.closing) if self.after_name else (self.key, self.closing)
        name = yield from reader.before(*ends, most=MAX_NAME, keep=(self.key, self.closing))
        name = name.strip().strip('"')
        if known_only and name not in answer.tools:
            raise BrokenError
        tool = answer.tool(name)
        answer.begin_call(name)
        count = 0
        while True:
            yield from reader.space()
            if (yield from reader.expect(self.key, self.closing)) == self.closing:
                break
            yield from self._parameter(answer, tool, "{" if not count else ", ")
            count += 1
        answer.argue("}" if count else "{}")
        answer.end_call()

    def _parameter(self, answer: Answer, tool: Tool, before: str) -> Steps[None]:
        reader = answer.reader
        key = (yield from reader.before(self.after_key, most=MAX_NAME)).strip()
        is_string: bool | None = None
        if self.string_attribute:
            key, _, attribute = key.partition('" ')
            is_string = "true" in attribute if attribute else None
        key = key.strip('"')
        if not key or "\n" in key:
            raise BrokenError
        if self.value:
            yield from reader.space()
            yield from reader.expect(self.value)
        answer.argue(f"{before}{dumps(key)}: ")
        value = ParameterValue(answer, tool, tool.properties.get(key), is_string, exact=self.exact)
        found = yield from reader.until(search(self.value_end), value.feed, must_come=True)
        if not found:
            raise BrokenError
        reader.take(len(found))
        if value.has_open_string and answer.may_reread:
            yield from self._rest_of_json(answer, value)
        value.end()

    def _rest_of_json(self, answer: Answer, value: ParameterValue) -> Steps[None]:
        """Extend a JSON value whose string contains the closing tag, if it is valid JSON up to a later tag.

        Otherwise the first tag ends the value.
        """
        reader = answer.reader
        parts: list[str] = []
        found = self.value_end
        is_open = True
        while is_open:
            parts.append(found)
            more: list[str] = []
            found = yield from reader.until(search(self.value_end), more.append, must_come=True)
            parts += more
            is_open = bool(found) and not _turns("".join(more))
            reader.take(len(found))
        text = "".join(parts)
        if found and value.is_json_with(text):
            value.feed(text)
        else:
            reader.give_back(text.removeprefix(self.value_end) + found)


_QUOTE: Final = re.compile(r'\\.|(")', re.DOTALL)


def _turns(text: str) -> bool:
    """Return whether `text`, a piece of JSON, changes between inside and outside of a string."""
    return sum(1 for match in _QUOTE.finditer(text) if match[1]) % 2 == 1


#: Dropped at either end of a value, unless it is exact.
_BREAK: Final = "\n"


class ParameterValue:
    """A streaming value: passed on at once if it must be a string, otherwise when it is complete.

    `is_string` is None if only `schema`, the value's own within the tool's parameters, tells its type.
    """

    def __init__(
        self, answer: Answer, tool: Tool, schema: Any, is_string: bool | None = None, *, exact: bool = False
    ) -> None:
        self._answer = answer
        self._tool = tool
        self._schema = schema
        self._is_string = is_string
        self._break = "" if exact else _BREAK
        self._streams = is_string or (is_string is None and tool.types_of(schema) == ["string"])
        self._parts: list[str] = []
        self._begun = False
        self._held = ""

    def feed(self, text: str) -> None:
        if not self._streams:
            self._parts.append(text)
            return
        self._held += text
        if not self._begun:
            start = self._held.removeprefix(self._break)
            if self._is_string is None and "null".startswith(start.strip().lower()):
                return  # any type may turn out to be null
            self._begun = True
            self._held = start
            self._answer.argue('"')
        if self._break and self._held.endswith(self._break):
            certain, self._held = self._held[:-1], self._break
        else:
            certain, self._held = self._held, ""
        if certain:
            self._answer.argue(json.dumps(certain, ensure_ascii=False)[1:-1])

    @property
    def has_open_string(self) -> bool:
        """Whether this looks like JSON that was cut inside a string."""
        if self._streams or self._is_string:
            return False
        if self._is_string is None and not {"array", "object"} & set(self._tool.types_of(self._schema)):
            return False
        text = "".join(self._parts)
        return text.lstrip().startswith(("{", "[")) and _turns(text)

    def is_json_with(self, more: str) -> bool:
        """Return whether this followed by `more` is JSON."""
        try:
            parsed("".join(self._parts) + more)
        except ValueError:
            return False
        return True

    def end(self) -> None:
        if self._begun:
            self._answer.argue(json.dumps(self._held.removesuffix(self._break), ensure_ascii=False)[1:])
            return
        text = (self._held or "".join(self._parts)).removeprefix(self._break).removesuffix(self._break)
        self._answer.argue(dumps(text) if self._is_string else self._typed(text))

    def _typed(self, text: str) -> str:
        if self._is_string is False:
            with contextlib.suppress(ValueError):
                parsed(text)
                return text
        return self._tool.value_of(self._schema, text)


CODER: Final = ParameterCalls(
    section="<tool_call>",
    section_end="</tool_call>",
    opening="<function=",
    after_name=">",
    closing="</function>",
    key="<parameter=",
    after_key=">",
    value_end="</parameter>",
)

GLM: Final = ParameterCalls(
    section="",
    section_end="",
    opening="<tool_call>",
    after_name="\n",
    closing="</tool_call>",
    key="<arg_key>",
    after_key="</arg_key>",
    value="<arg_value>",
    value_end="</arg_value>",
    breaks="",
)


@dataclass(frozen=True)
class TaggedCalls(Syntax):
    """`<tool_call>`, which many families share, before calls in one of three forms.

    JSON (Hermes, Qwen), a function with parameters (Qwen 3 Coder), or a name with keys and values (GLM).
    """

    taught: ParameterCalls | None = None  # in the model's training; None: JSON

    @property
    def openings(self) -> tuple[str, ...]:
        return ("<tool_call>", "<function=") if self.taught == CODER else ("<tool_call>",)

    @property
    def form(self) -> Form:
        return self.taught.form if self.taught else JsonCalls("<tool_call>", "</tool_call>").form

    def read(self, answer: Answer, opening: str) -> Steps[None]:
        reader = answer.reader
        if opening != "<tool_call>":
            yield from CODER.read(answer, opening)
            return
        reader.take(len(opening))
        yield from reader.space()
        if (yield from reader.skip(CODER.opening)):
            yield from CODER.rest(answer)
        elif (yield from reader.comes("{", "[")):
            yield from calls(answer)
            yield from skip_closing(answer, "</tool_call>")
        else:
            yield from GLM.rest(answer, known_only=self.taught != GLM)
