"""Sentences about what a client names and nothing here is called, so that it is not ignored silently."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

#: Names that get a sentence each, and how much of a name is shown.
_MOST_NAMED: Final = 8
_LONGEST_NAME: Final = 40


def unknown_and_ignored(kind: str, names: Sequence[str], known: Collection[str]) -> list[str]:
    """What to say of `names`, each an unknown `kind`, with the one of `known` that was probably meant.

    One of `known` may be the name of a place and, after a dot, a name there.
    """
    said = [_sentence(kind, name[:_LONGEST_NAME], known) for name in names[:_MOST_NAMED]]
    rest = len(names) - len(said)
    return said + ([f"{rest} more unknown {kind}s are ignored"] if rest else [])


def _sentence(kind: str, name: str, known: Collection[str]) -> str:
    from difflib import get_close_matches

    elsewhere = [one for one in known if one.endswith(f".{name}")]
    near = elsewhere or get_close_matches(name, known, n=1)
    hint = f' (did you mean "{near[0]}"?)' if near else ""
    return f'{kind} "{name}" is unknown and ignored{hint}'
