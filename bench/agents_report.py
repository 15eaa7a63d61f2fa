"""Output of the recorded sessions of agents: lines for the terminal, a table, JSON.

python bench/agents_report.py        # regenerates the table from docs/agents.json
"""

from __future__ import annotations

from dataclasses import dataclass

from pages import DOCS, Report

#: Requests of a session, counted from 1, whose time to the first token is shown.
SHOWN = (2, 15, 30)


@dataclass(frozen=True)
class Result:
    """One session in tokens, and the seconds to each request's first token with and without the rules."""

    agent: str
    api: str
    requests: int
    prompts: int  # tokens of all prompts
    least: int  # of them, those that no earlier prompt begins with
    evaluated: int
    unruled: int  # evaluated without the rules
    seconds: list[float]
    unruled_seconds: list[float]

    @property
    def reused(self) -> float:
        """The share of the tokens seen before that were reused."""
        return (self.prompts - self.evaluated) / (self.prompts - self.least)


@dataclass(frozen=True)
class Run:
    """All sessions with one model."""

    model: str
    threads: int
    processor: str
    results: list[Result]


def line(result: Result) -> str:
    return (
        f"{result.agent:12} {result.requests:3} requests  {result.prompts:7} tokens  least {result.least:6}  "
        f"evaluated {result.evaluated:6}  without rules {result.unruled:6}  reused {result.reused:.1%}"
    )


def table(run: Run) -> str:
    """Format the results as Markdown."""
    turns = "/".join(map(str, SHOWN))
    text = [
        f"{run.model}, {run.threads} threads, {run.processor}.",
        "",
        "| agent | API | requests | tokens | least possible | evaluated | without rules | reused | "
        f"ms to first token ({turns}) | without rules |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    text += [
        f"| {result.agent} | {result.api} | {result.requests} | {result.prompts:,} | {result.least:,} | "
        f"{result.evaluated:,} | {result.unruled:,} | {result.reused:.1%} | {_times(result.seconds)} | "
        f"{_times(result.unruled_seconds)} |"
        for result in run.results
    ]
    return "\n".join(text) + "\n"


def _times(seconds: list[float]) -> str:
    return "/".join(f"{1000 * seconds[turn - 1]:.0f}" for turn in SHOWN)


REPORT = Report(DOCS / "agents.json", "make bench-agents", Run, {DOCS / "agents.md": table})

if __name__ == "__main__":
    REPORT.rewrite()
