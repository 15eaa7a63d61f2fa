"""Output of the comparison of models that hear: lines for the terminal, a table, JSON.

python bench/hearing_report.py        # regenerates the table from docs/hearing.json
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from pages import DOCS, Report

#: The ratio to reach for encoders.
BAR = 1.5


@dataclass(frozen=True)
class Peer:
    """Another engine at its best setting: seconds, one value per repetition."""

    name: str
    setting: str
    encoder: list[float]
    whole: list[float]  # empty if only the encoder is measured


@dataclass(frozen=True)
class Result:
    """The seconds of one model and type of its matrices, one value per repetition."""

    model: str
    kind: str
    encoder: list[float]
    whole: list[float]  # from samples to the last token; empty if only the encoder is measured
    peers: list[Peer]


@dataclass
class Run:
    """All results of a run, with versions and machine."""

    versions: str
    threads: int
    processor: str
    seconds: float  # of the recording
    tokens: int
    results: list[Result] = field(default_factory=list)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return statistics.median(theirs) / statistics.median(ours)


def cell(run: Run, times: Sequence[float]) -> str:
    """Format seconds of sound in a second: median (min to max)."""
    if not times:
        return ""
    rates = [run.seconds / time for time in times]
    spread = f" ({min(rates):.1f} to {max(rates):.1f})" if len(rates) > 1 else ""
    return f"{statistics.median(rates):.1f}{spread}"


def line(run: Run, result: Result) -> str:
    text = f"{result.model} {result.kind}: encoder {cell(run, result.encoder)}, all {cell(run, result.whole)}"
    for peer in result.peers:
        text += f"; {peer.name} ({peer.setting}): encoder {cell(run, peer.encoder)} "
        text += f"ratio {ratio(result.encoder, peer.encoder):.2f}"
        if peer.whole:
            text += f", all {cell(run, peer.whole)} ratio {ratio(result.whole, peer.whole):.2f}"
    return text


def table(run: Run) -> str:
    """Format the results as Markdown."""
    counts = [len(each.encoder) for each in run.results]
    text = [
        f"Seconds of sound in a second: medians (min to max) of {min(counts)} to {max(counts)} alternating "
        f"runs over {run.seconds:.0f} s, {run.tokens} tokens. {run.versions}, {run.threads} threads each, "
        f"{run.processor}. The bar is {BAR} times the speed of an encoder. Weights are random; each engine "
        "runs at its best setting; whisper.cpp is its package's, which uses AVX2 at most. In Q8_0, half of "
        "Puna's encoder is attention, which multiplies floats.",
        "",
        "| model | peer | its setting | Puna, encoder | peer, encoder | ratio "
        "| Puna, all | peer, all | ratio |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for each in run.results:
        for peer in each.peers:
            found = ratio(each.encoder, peer.encoder)
            whole = f"**{ratio(each.whole, peer.whole):.2f}**" if peer.whole else ""
            text.append(
                f"| {each.model} {each.kind} | {peer.name} | {peer.setting} | {cell(run, each.encoder)} "
                f"| {cell(run, peer.encoder)} | **{found:.2f}** {'✓' if found >= BAR else '✗'} "
                f"| {cell(run, each.whole if peer.whole else [])} | {cell(run, peer.whole)} | {whole} |"
            )
    return "\n".join(text) + "\n"


REPORT = Report(DOCS / "hearing.json", "make bench-hearing", Run, {DOCS / "hearing.md": table})

if __name__ == "__main__":
    REPORT.rewrite()
