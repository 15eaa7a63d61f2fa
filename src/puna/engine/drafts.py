"""Draft tokens of a sequence, and how many of its earlier ones were accepted."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from puna.engine.prompt_lookup import PromptLookup

if TYPE_CHECKING:
    from puna.engine.batching import BatchSlice
    from puna.engine.sequence import Sequence

#: The source of a draft: the length of the matched text, or this for what generates drafts.
GENERATED = 0
#: What the format of an answer leaves no choice about.
FORCED = -1

#: The share of draft tokens that are accepted, by source.
AcceptanceRates = dict[int, float]


class Drafter(Protocol):
    """What generates drafts: a draft model, or the model's own prediction heads."""

    context: int  # inputs of a sequence after which it can draft

    @property
    def mode(self) -> str:
        """What requests call it in `speculate`."""

    @property
    def provided_bytes(self) -> int:
        """Memory it takes beside the model and its cache."""

    def pass_cost(self, step_s: float) -> float:
        """The cost of drafting one more token, as a fraction of a step of the model that takes `step_s`."""

    def catch_up_cost(self, sequence: Sequence, step_s: float) -> float:
        """The cost of what must come before the first draft of `sequence`, as such a fraction."""

    def observe(self, slices: Items[BatchSlice], rows: int) -> None:
        """The model has evaluated `slices`, `rows` rows in all."""

    def leave(self, sequence: Sequence) -> None:
        """A sequence is about to end."""

    def draft(self, wanted: Items[tuple[Sequence, int]]) -> list[list[int]]:
        """Up to the given number of tokens after each sequence."""

    def release_finished(self) -> None:
        """Forget sequences that no longer run."""

    def close(self) -> None:
        """Give all memory back."""


@dataclass(eq=False)
class Drafting:
    """How one sequence drafts tokens, and how that has worked so far."""

    mode: str  # "prompt", that of a `Drafter`, or "format": only what is forced
    acceptance: AcceptanceRates
    drafted: int = 0
    accepted: int = 0
    lookup: PromptLookup | None = None  # index of the sequence; made when needed

    @property
    def generated(self) -> bool:
        """Whether a `Drafter` generates the drafts."""
        return self.mode not in ("prompt", "format")


@dataclass
class Draft:
    """Tokens that may follow a sequence's newest one."""

    source: int = 0
    tokens: list[int] = field(default_factory=list)
