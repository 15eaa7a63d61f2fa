"""Draft tokens of a sequence, and how many of its earlier ones were accepted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from puna.engine.prompt_lookup import PromptLookup

#: The source of a draft: the length of the matched text, or this for a draft model.
FROM_MODEL = 0
#: What the format of an answer leaves no choice about.
FORCED = -1

#: The share of draft tokens that are accepted, by source.
AcceptanceRates = dict[int, float]


@dataclass(eq=False)
class Drafting:
    """How one sequence drafts tokens, and how that has worked so far."""

    source: Literal["model", "lookup", "none"]  # of what is not forced
    acceptance: AcceptanceRates
    drafted: int = 0
    accepted: int = 0
    lookup: PromptLookup | None = None  # index of the sequence; made when needed


@dataclass
class Draft:
    """Tokens that may follow a sequence's newest one."""

    source: int = 0
    tokens: list[int] = field(default_factory=list)
