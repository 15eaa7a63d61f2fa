"""The definition of a plot: slots to fill, and beats to tell in order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Beat = str  # a template; those starting with "?" are told only half of the time


@dataclass(frozen=True)
class Plot:
    """A plot. `want`, `problem` and `solved` answer questions about the story afterwards."""

    name: str
    themes: Sequence[str]
    beats: Sequence[Beat]
    want: str  # "<n> wanted ..." : the whole sentence
    problem: str
    solved: str
    picks: Mapping[str, Sequence[Mapping[str, str]]] = field(default_factory=dict)
    about: Sequence[str] = ()  # templates of things a user may ask the story to be about
