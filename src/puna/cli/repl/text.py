'''Typed messages: when one is complete, and its text without the enclosing """.'''

from __future__ import annotations

QUOTE = '"""'
_SET_SYSTEM = "/set system "


def is_complete(text: str) -> bool:
    '''Whether Enter sends `text`: not while a """ is open, which a line ending in """ closes.'''
    body = _quoted_part(text)
    return body is None or _closed(body)


def unquoted(text: str) -> str:
    '''`text` without the enclosing """; for `/set system`, without those around its value.'''
    body = _quoted_part(text)
    if body is None:
        return text
    start = text.lstrip()
    command = _SET_SYSTEM if start.startswith(_SET_SYSTEM) else ""
    inner = body[len(QUOTE) :]
    if _closed(body):
        inner = inner.rstrip()[: -len(QUOTE)]
    return command + inner.strip("\n")


def _quoted_part(text: str) -> str | None:
    text = text.lstrip()
    if text.startswith(_SET_SYSTEM):
        text = text.removeprefix(_SET_SYSTEM).lstrip()
    return text if text.startswith(QUOTE) else None


def _closed(body: str) -> bool:
    return body[len(QUOTE) :].rstrip().endswith(QUOTE)
