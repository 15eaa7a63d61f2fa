"""Output of a comparison of servers: lines for the terminal, a Markdown table, JSON.

python bench/serving_report.py        # regenerates the table from docs/serving.json
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from pages import DOCS, Report
from report import percentile, spread

OURS, THEIRS = "Puna", "llama.cpp server"
AS_IN_FILE = f"{THEIRS}, weights as in the file"
CROWDS = {
    "shared": "850 tokens in common, 20 of their own",
    "warm": "the same, and the 850 were seen before",
    "unrelated": "200 tokens each",
}
#: Ratios to reach, relative to llama.cpp's server: tokens per second (min), time to the first token (max).
RATE_BARS = {"shared": 10.0, "unrelated": 2.5}
FIRST_BARS = {"shared": 0.1}
HTTP_BAR = 0.97
IDLE_BYTES_BAR, IDLE_CPU_BAR = 100e6, 0.01


@dataclass
class Burst:
    """The results of all clients at once on one server. Times are in seconds."""

    crowd: str
    server: str
    rate: float  # total tokens per second of all answers, from the request to the last token
    first: float  # to the first token: median over clients
    first_p95: float
    gap: float  # between tokens: median over all answers
    gap_p95: float
    http_cpu: float  # fraction of a core used by the HTTP process (which also computes in llama.cpp)


@dataclass
class Turns:
    """The results of second turns of conversations, one value for each."""

    server: str
    new: int  # tokens that were not evaluated before
    evaluated: list[int]
    prompt: list[int]  # total tokens
    first_s: list[float]


@dataclass
class Streaming:
    """The tokens per second of some streams, one value per repetition, alternating."""

    streams: int
    tokens: int
    http: list[float]
    inside: list[float]
    http_cpu: list[float]  # fraction of a core used by the HTTP process

    @property
    def ratio(self) -> float:
        """The median over pairs, because other load is about the same for both runs of a pair."""
        return statistics.median(a / b for a, b in zip(self.http, self.inside, strict=True))


@dataclass
class IdleCost:
    """The cost of idle connections."""

    server: str
    connections: int
    left: int  # connections the server had not closed at the end
    bytes: int
    cpu_s: float
    seconds: float

    @property
    def met(self) -> bool:
        light = self.bytes < IDLE_BYTES_BAR and self.cpu_s < IDLE_CPU_BAR * self.seconds
        return light and self.left == self.connections


@dataclass
class Run:
    """A complete comparison."""

    model: str
    threads: int
    processor: str
    versions: list[str]
    bursts: list[Burst] = field(default_factory=list)
    turns: list[Turns] = field(default_factory=list)
    streaming: Streaming | None = None
    idle: list[IdleCost] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    minutes: float = 0.0


def line(result: Burst) -> str:
    return (
        f"{result.crowd:>10}  {result.server:<17} {result.rate:7.1f} tokens/s   first token: "
        f"median {result.first:6.2f} s, p95 {result.first_p95:6.2f} s   between tokens: "
        f"median {1e3 * result.gap:5.0f} ms, p95 {1e3 * result.gap_p95:5.0f} ms"
    )


def turns_line(result: Turns) -> str:
    return (
        f"{'turns':>10}  {result.server:<17} {len(result.evaluated)} second turns: {max(result.evaluated)} "
        f"tokens evaluated at most, median {statistics.median(result.evaluated):g}, {result.new} of up to "
        f"{max(result.prompt)} are new   first token: median {statistics.median(result.first_s):.2f} s, "
        f"p95 {percentile(result.first_s, 95):.2f} s"
    )


def streaming_line(result: Streaming) -> str:
    return (
        f"{'streaming':>10}  {result.streams} streams: {statistics.median(result.http):.1f} tokens/s "
        f"over HTTP, {statistics.median(result.inside):.1f} in process, ratio {result.ratio:.3f} (median of "
        f"{len(result.http)} pairs); HTTP takes {statistics.median(result.http_cpu):.1%} of a core"
    )


def idle_line(result: IdleCost) -> str:
    return (
        f"{'idle':>10}  {result.server:<17} {result.left} of {result.connections} connections left open: "
        f"{result.bytes / 1e6:.1f} MB, {result.cpu_s:.2f} s of processor time in {result.seconds:g} s"
    )


def table(run: Run) -> str:
    """Format the results as Markdown."""
    text = [
        f"Model {run.model}, {run.threads} threads, {run.processor}. {'; '.join(run.versions)}. Medians over "
        f"alternating repetitions; the whole run took {run.minutes:.0f} minutes.",
        "",
    ]
    text += [f"Skipped: {name} ({why})." for name, why in run.left_out.items()]
    if run.bursts:
        text += _bursts(run)
    if run.turns:
        text += _turns(run)
    if run.streaming:
        text += _streaming(run.streaming)
    if run.idle:
        text += _idle(run)
    return "\n".join(text) + "\n"


@dataclass(frozen=True)
class Middle:
    """Medians over the repetitions of a crowd on one server."""

    crowd: str
    server: str
    rates: list[float]
    first: float
    first_p95: float
    gap: float
    gap_p95: float

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


def middles(run: Run) -> list[Middle]:
    """Return the medians by crowd, and by server in starting order."""
    found = []
    for crowd in dict.fromkeys(burst.crowd for burst in run.bursts):
        for server in dict.fromkeys(burst.server for burst in run.bursts):
            some = [burst for burst in run.bursts if (burst.crowd, burst.server) == (crowd, server)]
            if some:
                times = (
                    statistics.median(getattr(burst, name) for burst in some)
                    for name in ("first", "first_p95", "gap", "gap_p95")
                )
                found.append(Middle(crowd, server, [burst.rate for burst in some], *times))
    return found


def _bursts(run: Run) -> list[str]:
    text = [
        "| clients | server | tokens/s | first token, median | p95 | between tokens, median | p95 | runs |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    all_middles = middles(run)
    text += [
        f"| {one.crowd} | {one.server} | {spread(one.rates)} | {one.first:.2f} s | {one.first_p95:.2f} s "
        f"| {1e3 * one.gap:.0f} ms | {1e3 * one.gap_p95:.0f} ms | {len(one.rates)} |"
        for one in all_middles
    ]
    bars = []
    for crowd in dict.fromkeys(one.crowd for one in all_middles):
        ours = [one for one in all_middles if (one.crowd, one.server) == (crowd, OURS)]
        theirs = [one for one in all_middles if one.crowd == crowd and one.server.startswith(THEIRS)]
        if ours and theirs:
            bars.append(_bar(ours[0], max(theirs, key=lambda one: one.rate)))
    return [*text, "", *bars, ""] if bars else [*text, ""]


def _bar(ours: Middle, theirs: Middle) -> str:
    rate, late, crowd = ours.rate / theirs.rate, ours.first_p95 / theirs.first_p95, ours.crowd
    goal = f" (bar {bar:g}: {_met(rate >= bar)})" if (bar := RATE_BARS.get(crowd)) else ""
    wait = f" (bar {bar:g}: {_met(late <= bar)})" if (bar := FIRST_BARS.get(crowd)) else ""
    return (
        f"- {crowd}, compared with {theirs.server}: **{rate:.1f}** times the tokens per second{goal}, "
        f"**{late:.3f}** of the time to the first token, p95{wait}."
    )


def _turns(run: Run) -> list[str]:
    text = [
        "| second turns | count | new tokens | evaluated, median | max | first token, median | p95 |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    text += [
        f"| {turns.server} | {len(turns.evaluated)} | {turns.new} | {statistics.median(turns.evaluated):g} | "
        f"{max(turns.evaluated)} | {statistics.median(turns.first_s):.2f} s | "
        f"{percentile(turns.first_s, 95):.2f} s |"
        for turns in run.turns
    ]
    ours = next((turns for turns in run.turns if turns.server == OURS), None)
    if ours is not None:
        always = all(count <= ours.new for count in ours.evaluated)
        text += ["", f"- Puna always evaluates only the new tokens: {_met(always)}."]
    return [*text, ""]


def _streaming(result: Streaming) -> list[str]:
    return [
        f"- {result.streams} streams over HTTP reach **{result.ratio:.1%}** of the speed in process (bar "
        f"{HTTP_BAR:.0%}: {_met(result.ratio >= HTTP_BAR)}): {statistics.median(result.http):.1f} and "
        f"{statistics.median(result.inside):.1f} tokens/s, the median of {len(result.http)} pairs; the "
        f"HTTP process uses {statistics.median(result.http_cpu):.1%} of one core.",
        "",
    ]


def _idle(run: Run) -> list[str]:
    text = ["| idle connections | left open | memory | processor time |", "|---|---:|---:|---:|"]
    text += [
        f"| {cost.server} | {cost.left} of {cost.connections} | {cost.bytes / 1e6:.1f} MB "
        f"| {cost.cpu_s:.2f} s in {cost.seconds:g} s |"
        for cost in run.idle
    ]
    ours = next((cost for cost in run.idle if cost.server == OURS), None)
    if ours is not None:
        text += ["", f"- Under 100 MB and no processor time (less than 1 % of a core): {_met(ours.met)}."]
    return [*text, ""]


def _met(yes: bool) -> str:
    return "met ✓" if yes else "missed ✗"


TABLES = {DOCS / "serving.md": table}
REPORT = Report(DOCS / "serving.json", "make bench-serving", Run, TABLES)

if __name__ == "__main__":
    REPORT.rewrite()
