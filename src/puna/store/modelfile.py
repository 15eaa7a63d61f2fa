"""Modelfiles: one command `NAME value` per line; values that span lines are quoted.

FROM ./model.gguf
PARAMETER temperature 0.7
SYSTEM \"\"\"You are
terse.\"\"\"
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable
from dataclasses import dataclass

from puna.errors import RequestError
from puna.unknown import did_you_mean

NAMES = (
    "from", "license", "template", "system", "adapter", "draft", "renderer",
    "parser", "parameter", "message", "requires",
)  # fmt: skip
ROLES = ("system", "user", "assistant")

_BAD_COMMAND = 'command must be one of "' + '", "'.join(NAMES[:-1]) + f'", or "{NAMES[-1]}"'
_BAD_ROLE = 'message role must be one of "system", "user", or "assistant"'
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_LINE_END = re.compile(r"\r\n|\r|\n")
_WORD = re.compile(r"[A-Za-z0-9_]*")


class ModelfileError(RequestError):
    """A Modelfile does not follow the grammar; the message names the line."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One command: its name in lower case, its value, and for PARAMETER and MESSAGE the key or role."""

    name: str
    value: str
    key: str = ""

    def __str__(self) -> str:
        """Write the command as in a Modelfile. Raises ModelfileError if no quoting can express it."""
        words = [self.name.upper(), self.key] if self.key else [self.name.upper()]
        return " ".join([*words, quoted(self.value, bare=self.name == "from")])


@dataclass(frozen=True, slots=True)
class Modelfile:
    """The commands of a Modelfile in order, without comments and blank lines."""

    commands: tuple[Instruction, ...]

    def __str__(self) -> str:
        return "".join(f"{command}\n" for command in self.commands)

    def values(self, name: str) -> list[str]:
        """Return the values of all commands called `name` (lower case), in order."""
        return [command.value for command in self.commands if command.name == name]

    def last(self, name: str) -> str | None:
        """Return the value of the last command called `name`, or None."""
        found = self.values(name)
        return found[-1] if found else None

    @property
    def messages(self) -> list[dict[str, str]]:
        """The MESSAGE commands as `role` and `content`."""
        return [{"role": item.key, "content": item.value} for item in self.commands if item.name == "message"]


def decode(data: bytes) -> str:
    """Decode a Modelfile in UTF-8, or in UTF-16 with a byte order mark, replacing invalid bytes."""
    for bom, encoding in _BOMS:
        if data.startswith(bom):
            return data[len(bom) :].decode(encoding, "replace")
    return data.decode("utf-8", "replace")


def parse(text: str | bytes) -> Modelfile:
    """Parse a Modelfile. Raises ModelfileError naming the line."""
    reader = _Reader(decode(text) if isinstance(text, bytes) else text.removeprefix("\ufeff"))
    commands: list[Instruction] = []
    while reader.skip_to_command():
        commands.append(_command(reader))
    if not any(command.name == "from" for command in commands):
        raise ModelfileError("no FROM line")
    return Modelfile(tuple(commands))


def _command(reader: _Reader) -> Instruction:
    at = reader.at
    name = reader.word().lower()
    if name not in NAMES or not reader.skip_blanks():
        hint = "" if name in NAMES else did_you_mean(name.upper(), [known.upper() for known in NAMES])
        raise ModelfileError(f"(line {reader.line(at)}): {_BAD_COMMAND}{hint}")
    key = ""
    if name in ("parameter", "message"):
        key = reader.word()
        if name == "message" and key not in ROLES:
            raise ModelfileError(f"(line {reader.line(at)}): {_BAD_ROLE}")
        if not key or not reader.skip_blanks():
            raise ModelfileError(
                f"unexpected EOF: {key[:80]}" if key else f"unexpected EOF in line {reader.line(at)}"
            )
    return Instruction(name, reader.value(), key)


class _Reader:
    """A position in the text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    @property
    def at(self) -> int:
        return self._at

    def line(self, at: int) -> int:
        """Return the line number, from 1, of the character at `at`."""
        return 1 + len(_LINE_END.findall(self._text, 0, at))

    def skip_to_command(self) -> bool:
        """Skip blank lines and comments; return False at the end of the text."""
        while self._at < len(self._text):
            if self._text[self._at] == "#":
                self._at = self._line_end()[0]
            elif self._text[self._at] in " \t\r\n":
                self._at += 1
            else:
                return True
        return False

    def word(self) -> str:
        match = _WORD.match(self._text, self._at)
        assert match is not None  # the pattern matches the empty string
        self._at = match.end()
        return match[0]

    def skip_blanks(self) -> bool:
        """Skip spaces and tabs; return False if there are none."""
        start = self._at
        while self._at < len(self._text) and self._text[self._at] in " \t":
            self._at += 1
        return self._at > start

    def value(self) -> str:
        """Read a value up to the first end of a line at which its quotes, if any, are closed."""
        start = self._at
        end, self._at = self._line_end()
        first = self._text[start:end].strip()
        quote = next((quote for quote in ('"""', '"') if first.startswith(quote)), "")
        if not quote:
            return first
        begin = self._text.index(quote, start) + len(quote)
        line = begin
        while True:
            stop = line + len(self._text[line:end].rstrip()) - len(quote)
            if stop >= line and self._text.startswith(quote, stop):
                return self._text[begin:stop]
            if end == len(self._text):
                opened = self.line(start)
                raise ModelfileError(f"unexpected EOF: the quote opened on line {opened} is never closed")
            line = self._at
            end, self._at = self._line_end()

    def _line_end(self) -> tuple[int, int]:
        """Return the end of the current line and the start of the next."""
        match = _LINE_END.search(self._text, self._at)
        return match.span() if match else (len(self._text), len(self._text))


def quoted(value: str, *, bare: bool = False) -> str:
    """Write `value` as in a Modelfile, quoted only if necessary, and never with `bare`.

    Raises ModelfileError for the few values that the grammar cannot express (with a line before the last
    that ends in `\"\"\"`).
    """
    for candidate in _spellings(value, bare):
        reader = _Reader(candidate)
        try:
            if reader.value() == value and not reader.skip_to_command():
                return candidate
        except ModelfileError:
            continue
    raise ModelfileError(f"this value cannot be written in a Modelfile: {value!r}")


def _spellings(value: str, bare: bool) -> Iterable[str]:
    needs_quotes = not value or value != value.strip() or _LINE_END.search(value)
    if bare or not needs_quotes:
        yield value
    if not bare:
        yield from (f'"""{value}"""', f'"{value}"') if '"' in value else (f'"{value}"', f'"""{value}"""')
