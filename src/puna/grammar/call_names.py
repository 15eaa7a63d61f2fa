"""Names of tools and parameters that a family's markup can hold."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from puna.chat.answers.family import AnswerParser, Reading
from puna.chat.answers.parts import CallDelta, Form
from puna.chat.answers.tools import Tool, dumps
from puna.errors import RequestError, shown

#: Writes a text of the markup in Lark, with its control tokens as tokens.
Spell = Callable[[str], str]

#: Names of parameters that every family's markup can hold.
_PLAIN: Final = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)


@dataclass
class Names:
    """The names in calls of `form`, most of which are written as they are.

    One that is not read as it is written, because it has a part of the markup, is refused: the call would be
    another one. So is one with a control token, which might end the answer.
    """

    reading: Reading
    form: Form
    spell: Spell

    def of_tool(self, name: str) -> str:
        """Return a tool's name as calls have it. Raises `RequestError` if they cannot."""
        if not self._survives(name):
            raise RequestError(f"the tool name {shown(name)} is not supported in calls of this model")
        return self._written(name)

    def check_parameter(self, name: str, place: str) -> None:
        """Raise a `RequestError` if calls cannot have a parameter of this name."""
        if not _PLAIN.fullmatch(name) and not self._survives("f", name):
            raise RequestError(
                f"the parameter name {shown(name)} at {place} is not supported in calls of this model"
            )

    def _survives(self, tool: str, parameter: str | None = None) -> bool:
        """Return whether a call with these names is read as it is written."""
        if any(self.spell(name) != json.dumps(name) for name in (tool, parameter) if name):
            return False  # it contains a control token
        form, own = self.form, self.form.parameters
        arguments, given = ("{}" if own is None else ""), dict[str, str]()
        if own is not None and parameter is not None:
            begin, end = own.quotes or ('"', '"')
            arguments = f"{own.key}{parameter}{own.after_key}{begin}x{end}{own.closing_of(parameter)}"
            given = {parameter: "x"}
        call = f"{form.before}{self._written(tool)}{form.after}{arguments}{form.closing}"
        known = Tool(tool, {"properties": {key: {"type": "string"} for key in given}})
        parser = AnswerParser(replace(self.reading, tools={tool: known}, thinking=None, streams_calls=False))
        parts = [*parser.feed(form.begin + call + form.end), *parser.flush(complete=True)]
        calls = [(part.name, json.loads(part.arguments)) for part in parts if isinstance(part, CallDelta)]
        return calls == [(tool, given)]

    def _written(self, tool: str) -> str:
        """Return a tool's name as it is written: within JSON, it is escaped."""
        return dumps(tool)[1:-1] if self.form.before.endswith('"') else tool
