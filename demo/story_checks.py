"""Checkable rules for stories: spelling, articles, quotes, sentences, names."""

import re
from collections.abc import Callable

from demo.corpus import words as w

NAMES = (frozenset(w.GIRLS) | frozenset(w.BOYS)) - {"Will"}  # which also starts questions
_WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")
_DOUBLED = re.compile(r"\b(\w+) \1\b", re.IGNORECASE)
_RIGHTLY_DOUBLED = {"up", "on", "la", "had", "that", "knock"}
_ARTICLE = re.compile(r"\b(?:a (?=[aeio])(?!one\b|once\b|eu)|an (?=[bcdfgjklmnpqrstvwxyz]))")


def problems(story: str, ended: bool, known: frozenset[str], request: str = "") -> list[str]:
    """Return the rules that the story breaks. `known` are the words of the training stories in lower case."""
    words = _WORD.findall(story)
    allowed = known | {word.lower() for word in _WORD.findall(request)}
    return [name for name, broken in _RULES.items() if broken(story)] + [
        name
        for name, broken in (
            ("does not end", not ended),
            ("length", not 60 <= len(words) <= 400),
            ("unknown word", any(not _spelled(word, allowed) for word in words)),
            ("too many names", len({word for word in words if word in NAMES} - _said_in(request)) > 2),
        )
        if broken
    ]


def _spelled(word: str, known: frozenset[str]) -> bool:
    lower = word.lower()
    return lower in known or (lower.endswith("'s") and lower[:-2] in known)


def _said_in(request: str) -> set[str]:
    return {word.capitalize() for word in _WORD.findall(request)}


def _bad_sentence_start(story: str) -> bool:
    """Whether a sentence starts in lower case, except after a quote ("Look!" she said)."""
    outside = re.sub(r'"[^"]*"', '""', story)
    return re.search(r"[.!?] [a-z]", outside) is not None


def _doubled_word(story: str) -> bool:
    return any(match.group(1).lower() not in _RIGHTLY_DOUBLED for match in _DOUBLED.finditer(story))


def _repeated_sentence(story: str) -> bool:
    sentences = [s for s in re.split(r"(?<=[.!?])\s+", story) if len(s.split()) >= 6]
    return len(set(sentences)) < len(sentences)


_RULES: dict[str, Callable[[str], bool]] = {
    "open quote": lambda story: any(paragraph.count('"') % 2 for paragraph in story.split("\n\n")),
    "last sentence": lambda story: not story.rstrip().endswith((".", "!", "?", '."', '!"', '?"')),
    "a or an": lambda story: _ARTICLE.search(story) is not None,
    "sentence start": _bad_sentence_start,
    "doubled word": _doubled_word,
    "repeated sentence": _repeated_sentence,
}
