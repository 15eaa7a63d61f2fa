"""Subtitles: texts with their times, as SubRip (`.srt`) and WebVTT (`.vtt`) files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

#: An arrow within a text would end the line of times in WebVTT, where markup begins with `<` and `&`.
_ESCAPED: Final = (("&", "&amp;"), ("<", "&lt;"), ("-->", "--&gt;"))


class TimedText(Protocol):
    """A text that is spoken from `start_s` to `end_s`, in seconds."""

    @property
    def start_s(self) -> float: ...

    @property
    def end_s(self) -> float: ...

    @property
    def text(self) -> str: ...


def srt(parts: Iterable[TimedText]) -> str:
    """Return the texts as a SubRip file."""
    return "".join(
        f"{number}\n{_time(part.start_s, ',')} --> {_time(part.end_s, ',')}\n"
        f"{_lines(part.text.replace('-->', '->'))}\n\n"
        for number, part in enumerate(parts, 1)
    )


def vtt(parts: Iterable[TimedText]) -> str:
    """Return the texts as a WebVTT file (https://www.w3.org/TR/webvtt1)."""
    written = ["WEBVTT\n\n"]
    for part in parts:
        text = part.text
        for plain, escaped in _ESCAPED:
            text = text.replace(plain, escaped)
        written.append(f"{_time(part.start_s, '.')} --> {_time(part.end_s, '.')}\n{_lines(text)}\n\n")
    return "".join(written)


def _lines(text: str) -> str:
    """Return `text` without empty lines, which would end it."""
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def _time(seconds: float, point: str) -> str:
    whole, milliseconds = divmod(round(max(0.0, seconds) * 1000), 1000)
    minutes, seconds_left = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds_left:02}{point}{milliseconds:03}"
