"""What a stream guesses, and how its guesses have fared."""

from __future__ import annotations

from dataclasses import dataclass, field

from puna.engine.ngrams import Ngrams

#: The kind of a guess: the length of the match it is from, or this for those of a draft model.
DRAFT = 0

#: How likely guesses come true, by their kind.
Chances = dict[int, float]


@dataclass(eq=False)
class Guesser:
    """One sequence's guesses, and how they have fared."""

    drafts: bool  # with the draft model, instead of looking up
    chances: Chances
    drafted: int = 0
    accepted: int = 0
    ngrams: Ngrams | None = None  # of the sequence as it is; made when it is needed


@dataclass
class Guess:
    """Tokens that may come after a stream's newest one."""

    kind: int = 0
    tokens: list[int] = field(default_factory=list)
