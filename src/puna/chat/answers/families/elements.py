"""Calls whose arguments are elements named by their keys, which nest: `<city>Paris</city>`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from puna.chat.answers.answer import Answer
from puna.chat.answers.families.json_calls import skip_closing
from puna.chat.answers.families.named_json import MAX_NAME
from puna.chat.answers.families.parameters import ParameterValue
from puna.chat.answers.family import Syntax
from puna.chat.answers.parts import Form, ParameterForm
from puna.chat.answers.reader import BrokenError, Reader, Steps, search
from puna.chat.answers.tools import Tool, dumps

#: Name of the elements of a list.
_ITEM: Final = "item"

#: Levels of elements within each other; deeper ones break a call.
_DEEPEST: Final = 100
_KEY: Final = re.compile(r"[^/<>\s][^<>\n]*")
_SPACE: Final = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True)
class ElementCalls(Syntax):
    """`<tool_call><invoke name="f"><key>text</key><list><item>1</item></list></invoke></tool_call>`.

    `mark` precedes each tag. A value is an object or a list if it begins with an element and its schema does
    not say that it is a string; otherwise it is a text, whose type the schema determines.
    """

    mark: str

    @property
    def _section(self) -> str:
        return f"{self.mark}<tool_call>"

    @property
    def _section_end(self) -> str:
        return f"{self.mark}</tool_call>"

    @property
    def _invoke(self) -> str:
        return f'{self.mark}<invoke name="'

    @property
    def openings(self) -> tuple[str, ...]:
        return (self._section, self._invoke)

    @property
    def form(self) -> Form:
        return Form(
            self._invoke,
            '">',
            f"{self.mark}</invoke>\n",
            f"{self._section}\n",
            self._section_end,
            parameters=ParameterForm(
                f"{self.mark}<",
                ">",
                quotes=("", ""),
                untyped=True,
                exact=True,
                before_end=f"{self.mark}</",
                item=_ITEM,
            ),
        )

    def read(self, answer: Answer, opening: str) -> Steps[None]:
        reader = answer.reader
        reader.take(len(opening))
        if opening != self._section:
            yield from self._call(answer)
            yield from skip_closing(answer, self._section_end)
            return
        yield from reader.space()
        yield from reader.expect(self._invoke)
        while True:
            yield from self._call(answer)
            yield from reader.space()
            if (yield from reader.skip(self._section_end)) or not (yield from reader.skip(self._invoke)):
                return

    def _call(self, answer: Answer) -> Steps[None]:
        name = (yield from answer.reader.before('">', most=MAX_NAME)).strip()
        tool = answer.tool(name)
        answer.begin_call(name)
        closing = f"{self.mark}</invoke>"
        key = yield from self._key(answer.reader, closing)
        yield from self._elements(answer, tool, tool.parameters, closing, key, listed=False)
        answer.end_call()

    def _key(self, reader: Reader, closing: str) -> Steps[str]:
        """Take the tag that comes next, and return its name; empty if it is `closing`."""
        yield from reader.space()
        if (yield from reader.expect(closing, f"{self.mark}<")) == closing:
            return ""
        key = yield from reader.before(">", most=MAX_NAME)
        if not _KEY.fullmatch(key):
            raise BrokenError
        return key

    def _elements(
        self, answer: Answer, tool: Tool, schema: Any, closing: str, key: str, *, listed: bool, depth: int = 0
    ) -> Steps[None]:
        """Read the elements of an object or a list; the tag that opens the first, `key`, has been read."""
        answer.argue("[" if listed else "{")
        separator = ""
        while key:
            if listed and key != _ITEM:
                raise BrokenError
            answer.argue(separator if listed else f"{separator}{dumps(key)}: ")
            inner = tool.items(schema) if listed else tool.member(schema, key)
            yield from self._element(answer, tool, inner, key, depth + 1)
            key = yield from self._key(answer.reader, closing)
            separator = ", "
        answer.argue("]" if listed else "}")

    def _element(self, answer: Answer, tool: Tool, schema: Any, name: str, depth: int) -> Steps[None]:
        """Read a value and the closing tag of its element."""
        if depth > _DEEPEST:
            raise BrokenError
        reader = answer.reader
        closing = f"{self.mark}</{name}>"
        types = tool.types_of(schema)
        blank = ""
        if types != ["string"]:
            blank = yield from reader.run(_SPACE)
            nests = "array" in types, "object" in types
            found = yield from reader.comes(closing, f"{self.mark}<")
            if found == closing and any(nests) and "string" not in types:
                reader.take(len(closing))
                answer.argue("[]" if nests[0] else "{}")
                return
            if found and found != closing:
                key = yield from self._key(reader, closing)
                listed = key == _ITEM if nests[0] == nests[1] else nests[0]
                yield from self._elements(answer, tool, schema, closing, key, listed=listed, depth=depth)
                return
        value = ParameterValue(answer, tool, schema, exact=True)
        value.feed(blank)
        if not (yield from reader.until(search(closing), value.feed, must_come=True)):
            raise BrokenError
        reader.take(len(closing))
        value.end()
