"""Output of the measurements of replicas: lines for the terminal, tables, JSON."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pages import DOCS, Report
from report import percentile


@dataclass(frozen=True)
class Way:
    """A server without a cluster, and a cluster of one node, with the same requests."""

    clients: str
    local_first_ms: list[float]  # to the first token
    cluster_first_ms: list[float]
    local_rates: list[float]  # tokens per second of all answers
    cluster_rates: list[float]

    @property
    def added_ms(self) -> float:
        """The time that the cluster adds to the first token: the median of the pairs' differences."""
        pairs = zip(self.cluster_first_ms, self.local_first_ms, strict=True)
        return statistics.median(mine - theirs for mine, theirs in pairs)

    @property
    def ratio(self) -> float:
        """Throughput as a multiple of that without a cluster: the median of the pairs' ratios."""
        pairs = zip(self.cluster_rates, self.local_rates, strict=True)
        return statistics.median(mine / theirs for mine, theirs in pairs)


@dataclass(frozen=True)
class Load:
    """One replica with all threads, and several with one each."""

    requests: str
    clients: int
    one_rates: list[float]  # tokens per second of all answers
    several_rates: list[float]
    one_first_s: list[float]
    several_first_s: list[float]

    @property
    def ratio(self) -> float:
        pairs = zip(self.several_rates, self.one_rates, strict=True)
        return statistics.median(several / one for several, one in pairs)


@dataclass(frozen=True)
class Routing:
    """Conversations with one router: all turns but the first ones."""

    router: str
    first_s: list[float]
    cached: float  # share of prompts


@dataclass(frozen=True)
class Run:
    """A complete run."""

    model: str
    threads: int
    replicas: int
    clients: int  # that converse
    way: list[Way]
    loads: list[Load]
    routing: list[Routing]


def lines(results: Sequence[Way | Load | Routing]) -> list[str]:
    return [_line(result) for result in results]


def _line(result: Way | Load | Routing) -> str:
    if isinstance(result, Way):
        return (
            f"{result.clients:12} first token {_median(result.local_first_ms):.1f} ms, through a cluster "
            f"{result.added_ms:+.1f} ms; {_median(result.local_rates):.0f} tokens/s, {result.ratio:.3f} times"
        )
    if isinstance(result, Load):
        return (
            f"{result.requests:22} one {_median(result.one_rates):.0f} tokens/s, several {result.ratio:.2f} "
            f"times; first token {_median(result.one_first_s):.2f} s, {_median(result.several_first_s):.2f} s"
        )
    return (
        f"{result.router:8} {len(result.first_s)} turns, first token {_median(result.first_s):.3f} s, "
        f"p99 {percentile(result.first_s, 99):.2f} s, {result.cached:.0%} cached"
    )


def table(run: Run) -> str:
    """Format everything as Markdown."""
    text = [
        f"Real processes on one machine of {run.threads} cores, with a random model ({run.model}).",
        "",
        "| requests | first token, one server | through a cluster | tokens/s | through a cluster |",
        "|---|---:|---:|---:|---:|",
    ]
    text += [
        f"| {way.clients} | {_median(way.local_first_ms):.1f} ms | {way.added_ms:+.1f} ms "
        f"| {_median(way.local_rates):.0f} | {way.ratio:.3f}x |"
        for way in run.way
    ]
    text += [
        "",
        f"| requests | one replica, {run.threads} threads | {run.replicas} replicas, one thread each "
        "| first token, one | several |",
        "|---|---:|---:|---:|---:|",
    ]
    text += [
        f"| {load.clients} clients, {load.requests} | {_median(load.one_rates):.0f} tokens/s "
        f"| {load.ratio:.2f}x | {_median(load.one_first_s):.2f} s | {_median(load.several_first_s):.2f} s |"
        for load in run.loads
    ]
    text += [
        "",
        f"| {run.clients} conversations, {run.replicas} replicas | turns | first token | p99 | cached |",
        "|---|---:|---:|---:|---:|",
    ]
    text += [
        f"| {one.router} | {len(one.first_s)} | {_median(one.first_s):.3f} s "
        f"| {percentile(one.first_s, 99):.2f} s | {one.cached:.0%} |"
        for one in run.routing
    ]
    return "\n".join(text) + "\n"


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)


REPORT = Report(DOCS / "cluster-replicas.json", "make bench-cluster", Run, {DOCS / "cluster.md": table})

if __name__ == "__main__":
    REPORT.rewrite()
