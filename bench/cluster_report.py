"""Output of the simulation of clusters: lines for the terminal, tables, JSON."""

from __future__ import annotations

from dataclasses import dataclass

from pages import DOCS, Report


@dataclass(frozen=True)
class Outcome:
    """Results of a trace on a cluster under a policy."""

    trace: str
    replicas: int
    policy: str
    requests: int
    first_s: float  # time to the first token, median
    first_p99_s: float
    hits: float  # share of prompt tokens that were cached
    imbalance: float  # work of the busiest replica, as a multiple of the mean


@dataclass(frozen=True)
class Cost:
    """The time of one decision of the router."""

    replicas: int
    tokens: int
    median_us: float
    p99_us: float


@dataclass(frozen=True)
class Run:
    """A complete run."""

    seed: int
    load: float
    parallel: int
    cache_tokens: int  # of each replica
    outcomes: list[Outcome]
    costs: list[Cost]


def line(outcome: Outcome) -> str:
    return (
        f"{outcome.replicas:4} replicas  {outcome.trace:14} {outcome.policy:26} {outcome.first_s:7.2f} s  "
        f"p99 {outcome.first_p99_s:7.2f} s  {outcome.hits:4.0%} cached  imbalance {outcome.imbalance:.2f}"
    )


def cost_line(cost: Cost) -> str:
    return f"{cost.replicas:4} replicas  {cost.median_us:4.0f} us a decision, p99 {cost.p99_us:4.0f} us"


def table(run: Run) -> str:
    """Format the medians and the 99th percentiles as Markdown, a column for each number of replicas."""
    sizes = sorted({outcome.replicas for outcome in run.outcomes})
    found = {(one.trace, one.policy, one.replicas): one for one in run.outcomes}
    text = [
        f"Simulated: {run.parallel} slots and a cache of {run.cache_tokens:,} tokens on each replica, "
        f"{run.load:.0%} load without reuse. Time to the first token, median / 99th percentile in seconds, "
        "by the number of replicas.",
        "",
        "| requests | router | " + " | ".join(f"{size:,}" for size in sizes) + " |",
        "|---|---|" + "---:|" * len(sizes),
    ]
    for trace, policy in dict.fromkeys((one.trace, one.policy) for one in run.outcomes):
        cells = [found.get((trace, policy, size)) for size in sizes]
        shown = [f"{cell.first_s:.2f} / {cell.first_p99_s:.1f}" if cell is not None else "" for cell in cells]
        text.append(f"| {trace} | {policy} | " + " | ".join(shown) + " |")
    costs = ", ".join(f"{cost.median_us:.0f} us for {cost.replicas:,}" for cost in run.costs)
    text += ["", f"A decision about a prompt of {run.costs[0].tokens:,} tokens takes {costs} replicas."]
    return "\n".join(text) + "\n"


REPORT = Report(
    DOCS / "cluster-simulation.json", "make cluster-simulation", Run, {DOCS / "cluster.md": table}
)

if __name__ == "__main__":
    REPORT.rewrite()
