"""Output of the measurements of replicas: lines for the terminal, tables, JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

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
        return median(mine - theirs for mine, theirs in pairs)

    @property
    def ratio(self) -> float:
        """Throughput as a multiple of that without a cluster."""
        return _ratio(self.cluster_rates, self.local_rates)

    @property
    def line(self) -> str:
        return (
            f"{self.clients:12} first token {median(self.local_first_ms):.1f} ms, through a cluster "
            f"{self.added_ms:+.1f} ms; {median(self.local_rates):.0f} tokens/s, {self.ratio:.3f} times"
        )


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
        return _ratio(self.several_rates, self.one_rates)

    @property
    def line(self) -> str:
        return (
            f"{self.requests:22} one {median(self.one_rates):.0f} tokens/s, several {self.ratio:.2f} "
            f"times; first token {median(self.one_first_s):.2f} s, {median(self.several_first_s):.2f} s"
        )


@dataclass(frozen=True)
class Routing:
    """Conversations with one router: all turns but the first ones."""

    router: str
    first_s: list[float]
    cached: float  # share of prompts

    @property
    def line(self) -> str:
        return (
            f"{self.router:8} {len(self.first_s)} turns, first token {median(self.first_s):.3f} s, "
            f"p99 {percentile(self.first_s, 99):.2f} s, {self.cached:.0%} cached"
        )


@dataclass(frozen=True)
class Run:
    """A complete run."""

    model: str
    threads: int
    replicas: int
    routed: int  # replicas of conversations, of one thread each
    clients: int  # that converse
    way: list[Way]
    loads: list[Load]
    routing: list[Routing]


def _ratio(rates: Sequence[float], of: Sequence[float]) -> float:
    """Return the median of the pairs' ratios."""
    return median(rate / other for rate, other in zip(rates, of, strict=True))


def table(run: Run) -> str:
    """Format everything as Markdown."""
    text = [
        f"Real processes on one machine of {run.threads} cores, with a random model ({run.model}).",
        "",
        "| requests | first token, one server | through a cluster | tokens/s | through a cluster |",
        "|---|---:|---:|---:|---:|",
    ]
    text += [
        f"| {way.clients} | {median(way.local_first_ms):.1f} ms | {way.added_ms:+.1f} ms "
        f"| {median(way.local_rates):.0f} | {way.ratio:.3f}x |"
        for way in run.way
    ]
    text += [
        "",
        f"| requests | one replica, {run.threads} threads | {run.replicas} replicas, one thread each "
        "| first token, one | several |",
        "|---|---:|---:|---:|---:|",
    ]
    text += [
        f"| {load.clients} clients, {load.requests} | {median(load.one_rates):.0f} tokens/s "
        f"| {load.ratio:.2f}x | {median(load.one_first_s):.2f} s | {median(load.several_first_s):.2f} s |"
        for load in run.loads
    ]
    text += [
        "",
        f"| {run.clients} at once, {run.routed} replicas | turns | first token | p99 | cached |",
        "|---|---:|---:|---:|---:|",
    ]
    text += [
        f"| {one.router} | {len(one.first_s)} | {median(one.first_s):.3f} s "
        f"| {percentile(one.first_s, 99):.2f} s | {one.cached:.0%} |"
        for one in run.routing
    ]
    return "\n".join(text) + "\n"


REPORT = Report(DOCS / "cluster-replicas.json", "make bench-cluster", Run, {DOCS / "cluster.md": table})
