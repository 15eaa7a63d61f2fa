"""What a stream guesses, and how its guesses have fared."""

from __future__ import annotations

from dataclasses import dataclass, field

from puna.engine.ngrams import Ngrams

#: How likely guesses come true, by the length of the match they are from.
Chances = dict[int, float]


@dataclass(eq=False)
class Guesser:
    """One sequence's guesses, and how they have fared."""

    chances: Chances
    drafted: int = 0
    accepted: int = 0
    ngrams: Ngrams | None = None  # of the sequence as it is; made when it is needed


@dataclass
class Guess:
    """Tokens that may come after a stream's newest one; `kind` is the length of the match they are from."""

    kind: int = 0
    tokens: list[int] = field(default_factory=list)
