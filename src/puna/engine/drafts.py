"""What a stream guesses, and how its guesses have fared."""

from __future__ import annotations

from dataclasses import dataclass, field

from puna.engine.prompt_lookup import PromptLookup

#: The kind of a guess: the length of the match it is from, or this for those of a draft model.
FROM_MODEL = 0

#: How likely guesses come true, by their kind.
AcceptanceRates = dict[int, float]


@dataclass(eq=False)
class Drafting:
    """One sequence's guesses, and how they have fared."""

    drafts: bool  # with the draft model, instead of looking up
    acceptance: AcceptanceRates
    drafted: int = 0
    accepted: int = 0
    lookup: PromptLookup | None = None  # of the sequence as it is; made when it is needed


@dataclass
class Draft:
    """Tokens that may come after a stream's newest one."""

    kind: int = 0
    tokens: list[int] = field(default_factory=list)
