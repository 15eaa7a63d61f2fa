"""Output of a comparison: a line per result, Markdown tables, a chart, JSON.

    python bench/report.py        # regenerates table and chart from docs/performance.json

The last complete runs are published, since a machine is faster in some hours than in others: each row is that
of the run with the median ratio.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path

import psutil
from pages import DOCS, README, Report, present_commit
from roofline import Machine
from rows import BANDWIDTH_BAR

#: Shown in the README.
README_MODEL = "1b q4_k_m"
#: Runs that are published together.
KEPT = 3
BEST = (
    "llama.cpp is at its best in every row: weights repacked for other kernels or as in the file, with or "
    "without flash attention, whichever is fastest there."
)


@dataclass
class Result:
    """The tokens per second of one test, one value per repetition, and the cost of the test."""

    model: str
    test: str
    kind: str  # "prompt" or "decode"
    ours: list[float]
    theirs: list[float]
    bar: float | None
    #: Read bandwidth at each repetition, in bytes per second; empty for a prompt.
    bandwidths: list[float]
    tokens: int
    streams: int
    step_bytes: float  # bytes read per decode step, with weights as in the file
    prompt_products: float  # multiply-adds of the whole prompt
    floats: bool  # whether the weights are of a float type
    setting: str  # of llama.cpp: the best one in this test
    others: dict[str, list[float]]  # its rates with other settings, from fewer runs
    openvino: list[float] = field(default_factory=list)  # empty if not compared
    share_bar: float = BANDWIDTH_BAR  # the share of the read bandwidth to reach
    prompt_bound: float | None = None  # the share of the peak that its kernels can reach, if known
    multiplying_s: float = 0.0  # the least seconds of a step's multiplications, if known

    @property
    def our_rate(self) -> float:
        return statistics.median(self.ours)

    @property
    def their_rate(self) -> float:
        return statistics.median(self.theirs)

    @property
    def ratio(self) -> float:
        return self.our_rate / self.their_rate

    @property
    def openvino_ratio(self) -> float:
        return self.our_rate / statistics.median(self.openvino)

    @property
    def met(self) -> bool:
        return self.bar is None or self.ratio >= self.bar

    def ratio_at_bound(self, machine: Machine) -> float | None:
        """Return the ratio to llama.cpp, as it was measured, of a test that reaches its bound, if known.

        For a prompt the bound is that of the kernels; otherwise it is that of `share`.
        """
        share, bound = self.share(machine), self.prompt_bound if self.kind == "prompt" else 1.0
        return self.ratio * bound / share if share and bound else None

    def share(self, machine: Machine) -> float | None:
        """Return the fraction of the bound: multiply-adds for a prompt, for decoding the slower of them and
        read bandwidth.

        The bandwidth is that of the same repetition, since it varies.
        """
        if self.kind == "prompt":
            peak = machine.float_peak if self.floats else machine.byte_peak
            return self.our_rate / self.tokens * self.prompt_products / peak if peak else None
        steps_s = (max(self.step_bytes / read, self.multiplying_s) for read in self.bandwidths)
        shares = (rate / self.streams * step_s for rate, step_s in zip(self.ours, steps_s, strict=True))
        return statistics.median(shares)


@dataclass
class Run:
    """All results of a run, with versions and machine."""

    kernels: str
    versions: str
    machine: Machine
    results: list[Result] = field(default_factory=list)
    processor: str = field(default_factory=lambda: processor())
    commit: str = field(default_factory=present_commit)
    began: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M", time.gmtime()))  # UTC


@dataclass
class Row:
    """A row of the table: the result with the median ratio, its machine, and the ratios of all runs."""

    result: Result
    machine: Machine
    ratios: list[float]


@dataclass
class Comparison:
    """The last complete runs of the same versions on the same processor, the earliest first."""

    runs: list[Run]

    @property
    def last(self) -> Run:
        return self.runs[-1]

    def with_run(self, run: Run) -> Comparison:
        """Return the last of these runs that are of the same kind as another one, and that one."""
        alike = [each for each in self.runs if _kind(each) == _kind(run)]
        return Comparison([*alike, run][-KEPT:])

    def rows(self, ratio: Callable[[Result], float] = lambda result: result.ratio) -> list[Row]:
        """Return the rows of the last run; of two runs, a row is that of the lower ratio."""
        measured: dict[tuple[str, str], list[tuple[Result, Machine]]] = {}
        for run in self.runs:
            for result in run.results:
                measured.setdefault((result.model, result.test), []).append((result, run.machine))
        rows = []
        for result in self.last.results:
            all_runs = sorted(measured[result.model, result.test], key=lambda each: ratio(each[0]))
            chosen, machine = all_runs[(len(all_runs) - 1) // 2]
            rows.append(Row(chosen, machine, [ratio(each) for each, _ in all_runs]))
        return rows


def _kind(run: Run) -> tuple[str, str, str, int]:
    return run.versions, run.kernels, run.processor, run.machine.threads


def processor() -> str:
    """Return the processor's name and its instruction sets for 8-bit integers."""
    name, flags = "unknown processor", ""
    for text in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = text.partition(":")
        if key.strip() == "model name":
            name = value.strip()
        elif key.strip() in ("flags", "Features"):
            flags = value
    known = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "amx_int8", "asimddp", "i8mm")
    found = [flag for flag in known if flag in flags.split()]
    return f"{name} ({', '.join(found)})" if found else name


def load_warning() -> str | None:
    """Watch the machine for two seconds, and return a warning if other programs use it, or None."""
    busy, cores = psutil.cpu_percent(2.0) / 100 * psutil.cpu_count(), len(os.sched_getaffinity(0))
    if busy <= 0.25 * cores:
        return None
    return (
        f"warning: other programs keep {busy:.1f} of {cores} cores busy. This slows down llama.cpp, whose "
        "threads wait for each other at every step, more than Puna: do not publish these results"
    )


def line(result: Result, machine: Machine) -> str:
    """Format one result for the terminal."""
    share, bar = result.share(machine), ""
    if result.bar is not None:
        bar = f", bar {result.bar:.1f} {'met' if result.met else 'MISSED'}"
    of = "peak" if result.kind == "prompt" else "bandwidth" if result.streams == 1 else "bound"
    if result.prompt_bound:
        of += f" (bound {result.prompt_bound:.0%})"
    return (
        f"{result.model:>14}  {result.test:<18} puna {spread(result.ours):<24} "
        f"llama.cpp {spread(result.theirs):<24} {f'({result.setting})':<28} ratio {result.ratio:.2f}{bar}"
        + (f"; {share:.0%} of {of}" if share is not None else "")
        + (f"; OpenVINO GenAI {spread(result.openvino)}" if result.openvino else "")
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value that `percent` of `values` do not exceed, or the largest of a few values."""
    ascending = sorted(values)
    return ascending[min(int(len(ascending) * percent / 100), len(ascending) - 1)]


def spread(rates: list[float]) -> str:
    """Format median, minimum and maximum."""
    return f"{statistics.median(rates):.1f} ({min(rates):.1f} to {max(rates):.1f})"


def table(comparison: Comparison) -> str:
    """Format the results as Markdown."""
    text = [
        f"Tokens per second: median (min to max) of {_repetitions(comparison)} alternating runs. "
        f"{_measured(comparison.last)}; kernels: {comparison.last.kernels}.",
        "",
        *_hours(comparison),
        "",
        BEST,
        "",
        "| model | test | Puna | llama.cpp | its best setting | ratio | bar | at its bound "
        "| share of the machine |",
        "|---|---|---:|---:|---|---:|---:|---:|---:|",
    ]
    for row in comparison.rows():
        result, most = row.result, row.result.ratio_at_bound(row.machine)
        bar = "" if result.bar is None else f"{result.bar:.1f} {'✓' if result.met else '✗'}"
        text.append(
            f"| {result.model} | {result.test} | {spread(result.ours)} | {spread(result.theirs)} "
            f"| {result.setting} | {_ratio(row)} | {bar} | {f'{most:.2f}' if most else ''} "
            f"| {_share(result, row.machine)} |"
        )
    return "\n".join([*text, *_openvino(comparison)]) + "\n"


def short_table(comparison: Comparison) -> str:
    """Format the README's table: medians of one model."""
    text = [
        f"Tokens per second; {_measured(comparison.last)}.",
        "",
        BEST,
        "",
        f"| {README_MODEL} | Puna | llama.cpp | its best setting | ratio |",
        "|---|---:|---:|---|---:|",
    ]
    text += [
        f"| {row.result.test} | {_medians(row.result)} | {row.result.ratio:.2f} |"
        for row in comparison.rows()
        if row.result.model == README_MODEL
    ]
    return "\n".join([*text, *_openvino(comparison)]) + "\n"


def ratio_table(comparison: Comparison) -> str:
    """Format the medians of all models, without bars and bounds."""
    text = [
        f"Tokens per second; {_measured(comparison.last)}.",
        "",
        *_hours(comparison),
        "",
        "| model | test | Puna | llama.cpp | its best setting | ratio |",
        "|---|---|---:|---:|---|---:|",
    ]
    text += [
        f"| {row.result.model} | {row.result.test} | {_medians(row.result)} | {_ratio(row)} |"
        for row in comparison.rows()
    ]
    return "\n".join([*text, *_openvino(comparison)]) + "\n"


def _medians(result: Result) -> str:
    """Format the columns of both engines."""
    return f"{result.our_rate:.1f} | {result.their_rate:.1f} | {result.setting}"


def _openvino(comparison: Comparison) -> list[str]:
    """Format a table of the rows also compared with OpenVINO GenAI, if it was installed."""
    compared = [
        replace(run, results=[result for result in run.results if result.openvino]) for run in comparison.runs
    ]
    if not compared[-1].results:
        return []
    text = [
        "",
        "OpenVINO GenAI, which makes integer weights of its own of the same files:",
        "",
        "| model | test | Puna | OpenVINO GenAI | ratio |",
        "|---|---|---:|---:|---:|",
    ]
    for row in Comparison(compared).rows(lambda result: result.openvino_ratio):
        result = row.result
        text.append(
            f"| {result.model} | {result.test} | {result.our_rate:.1f} "
            f"| {statistics.median(result.openvino):.1f} | {result.openvino_ratio:.2f} |"
        )
    return text


def _measured(run: Run) -> str:
    """Name what was compared, and where."""
    return f"{run.versions}, {run.machine.threads} threads each, {run.processor}"


def _hours(comparison: Comparison) -> list[str]:
    """Say when each run was, at which commit, and how fast its machine was."""
    if len(comparison.runs) == 1:
        return [f"The machine, measured in the same run: {comparison.last.machine.sentence()}."]
    text = [
        f"Each row is from the one of {len(comparison.runs)} runs with the median ratio; brackets show all:",
        "",
    ]
    return text + [
        f"- {run.began} UTC, {run.commit.partition(' ')[0]}: {run.machine.sentence()}"
        for run in comparison.runs
    ]


def _ratio(row: Row) -> str:
    ratio = f"**{row.result.ratio:.2f}**"
    if len(row.ratios) == 1:
        return ratio
    return f"{ratio} ({', '.join(f'{each:.2f}' for each in row.ratios)})"


def _repetitions(comparison: Comparison) -> str:
    """Describe the number of runs per row, which is higher for decoding one stream."""
    counts = [len(result.ours) for run in comparison.runs for result in run.results]
    fewest, most = min(counts), max(counts)
    return str(fewest) if fewest == most else f"{fewest} to {most}"


def _share(result: Result, machine: Machine) -> str:
    share = result.share(machine)
    if share is None:
        return ""
    if result.kind == "prompt":
        bound = f", bound {result.prompt_bound:.0%}" if result.prompt_bound else ""
        return f"{share:.0%} of {'float32' if result.floats else '8-bit'} peak{bound}"
    if result.streams > 1:
        return f"{share:.0%} of bound"
    mark = "✓" if share >= result.share_bar else "✗"
    return f"{share:.0%} of bandwidth {mark}"


ROW, TOP, LEFT, WIDTH, RIGHT = 24, 64, 250, 430, 76

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .title { font-size: 15px; font-weight: 600 }
  .quiet { fill: #59636e } .axis { stroke: #59636e } .grid { stroke: #d1d9e0 }
  .ahead { fill: #1a7f37 } .behind { fill: #bc4c00 } .bar { stroke: #0969da; stroke-width: 2.5 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .quiet { fill: #9198a1 } .axis { stroke: #9198a1 } .grid { stroke: #3d444d }
    .ahead { fill: #3fb950 } .behind { fill: #db6d28 } .bar { stroke: #58a6ff }
  }
"""


def chart(comparison: Comparison) -> str:
    """Draw the ratios to llama.cpp as an SVG that is readable on light and dark pages."""
    results = [row.result for row in comparison.rows()]
    longest = max([3.0, *(result.ratio for result in results), *(result.bar or 0 for result in results)])
    unit = WIDTH / longest
    height = TOP + ROW * len(results) + 34
    bottom = TOP + ROW * len(results) + 4

    def x(ratio: float) -> str:
        return f"{LEFT + ratio * unit:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + RIGHT} {height}" role="img">',
        "<title>Speed of Puna as a multiple of llama.cpp's</title>",
        f"<style>{STYLE}</style>",
        '<text class="title" x="12" y="24">Speed of Puna, as a multiple of llama.cpp’s</text>',
        '<text class="quiet" x="12" y="44">same file, same threads, alternating; '
        "blue lines are the bars to reach</text>",
    ]
    for tick in range(int(longest) + 1):
        kind = "axis" if tick == 1 else "grid"
        parts.append(f'<line class="{kind}" x1="{x(tick)}" x2="{x(tick)}" y1="{TOP - 6}" y2="{bottom}"/>')
        parts.append(
            f'<text class="quiet" x="{x(tick)}" y="{bottom + 17}" text-anchor="middle">{tick}×</text>'
        )
    for number, result in enumerate(results):
        y = TOP + ROW * number
        label = escape(f"{result.model}, {result.test}")
        kind = "ahead" if result.ratio >= 1 else "behind"
        parts.append(f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{label}</text>')
        parts.append(
            f'<rect class="{kind}" x="{LEFT}" y="{y + 1}" height="16" rx="2" '
            f'width="{result.ratio * unit:.1f}"/>'
        )
        if result.bar is not None:
            parts.append(
                f'<line class="bar" x1="{x(result.bar)}" x2="{x(result.bar)}" y1="{y - 2}" y2="{y + 20}"/>'
            )
        end = max(result.ratio, result.bar or 0)
        parts.append(f'<text x="{LEFT + end * unit + 7:.1f}" y="{y + 13}">{result.ratio:.2f}×</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def published(report: Report[Comparison], run: Run, *, first: bool = False) -> Comparison:
    """Return what to publish after a complete run: with those before it, unless it is the first."""
    return Comparison([run]) if first or not report.path.exists() else report.read().run.with_run(run)


TABLES = {DOCS / "performance.md": table, README: short_table}
REPORT = Report(DOCS / "performance.json", "make bench-peers", Comparison, TABLES, chart)

if __name__ == "__main__":
    REPORT.rewrite()
