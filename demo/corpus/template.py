"""Sentence templates: `{a|b|}` picks one alternative (they nest), `<slot>` inserts a value.

A slot written with a capital (`<He>`) inserts the value with its first letter capitalised.
"""

import random
import re
from collections.abc import Mapping
from functools import cache

Node = str | tuple[str, object]

_VOWEL = re.compile(r"\b([Aa]) (?=[aeiouAEIOU])")
_SOUNDS_LIKE_CONSONANT = re.compile(r"\b([Aa])n (?=(?:uni|use|one|once|eu)[a-z]*)")
_HOUR = re.compile(r"\b([Aa]) (?=hour|honest)")
_SENTENCE_START = re.compile(r"(^|[.!?]\s+|\n)([a-z])")


def expand(template: str, slots: Mapping[str, str], rng: random.Random) -> str:
    """Draw the template's alternatives and fill its slots. Raises KeyError for an unknown slot."""
    out: list[str] = []
    _write(_parse(template), slots, rng, out)
    return "".join(out)


def polish(text: str) -> str:
    """Fix "a"/"an", doubled spaces and small letters at the start of a sentence."""
    text = re.sub(r" {2,}", " ", text).strip()
    text = re.sub(r" ([.,!?;])", r"\1", text)
    text = _VOWEL.sub(r"\1n ", text)
    text = _SOUNDS_LIKE_CONSONANT.sub(r"\1 ", text)
    text = _HOUR.sub(r"\1n ", text)
    return _SENTENCE_START.sub(lambda m: m.group(1) + m.group(2).upper(), text)


def _write(nodes: tuple[Node, ...], slots: Mapping[str, str], rng: random.Random, out: list[str]) -> None:
    for node in nodes:
        if isinstance(node, str):
            out.append(node)
            continue
        kind, value = node
        if kind == "slot":
            out.append(_slot(str(value), slots))
        else:
            assert isinstance(value, tuple)
            _write(value[int(rng.random() * len(value))], slots, rng, out)


def _slot(name: str, slots: Mapping[str, str]) -> str:
    if name in slots:
        return slots[name]
    value = slots[name.lower()]
    return value[:1].upper() + value[1:]


@cache
def _parse(template: str) -> tuple[Node, ...]:
    nodes, end = _sequence(template, 0, top=True)
    if end != len(template):
        raise ValueError(f"unbalanced braces in template: {template!r}")
    return nodes


def _sequence(text: str, at: int, top: bool) -> tuple[tuple[Node, ...], int]:
    nodes: list[Node] = []
    plain: list[str] = []

    def flush() -> None:
        if plain:
            nodes.append("".join(plain))
            plain.clear()

    while at < len(text):
        char = text[at]
        if char == "{":
            flush()
            branches: list[tuple[Node, ...]] = []
            while True:
                branch, at = _sequence(text, at + 1, top=False)
                branches.append(branch)
                if at >= len(text):
                    raise ValueError(f"unclosed brace in template: {text!r}")
                if text[at] == "}":
                    break
            nodes.append(("choice", tuple(branches)))
        elif char in "|}" and not top:
            break
        elif char == "<":
            flush()
            close = text.index(">", at)
            nodes.append(("slot", text[at + 1 : close]))
            at = close
        else:
            plain.append(char)
        at += 1
    flush()
    return tuple(nodes), at
