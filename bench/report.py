"""Output of a comparison: a line per result, Markdown tables, a chart, JSON.

python bench/report.py        # regenerates table and chart from docs/performance.json
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import psutil
from pages import DOCS, README, Report
from roofline import Machine
from rows import BANDWIDTH_BAR

#: Shown in the README.
README_MODEL = "1b q4_k_m"
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


def table(run: Run) -> str:
    """Format the results as Markdown."""
    text = [
        f"Tokens per second: median (min to max) of {_repetitions(run)} alternating runs. "
        f"{run.versions}, {run.machine.threads} threads each, {run.processor}; kernels: {run.kernels}.",
        "",
        f"The machine, measured in the same run: {run.machine.sentence()}.",
        "",
        BEST,
        "",
        "| model | test | Puna | llama.cpp | its best setting | ratio | bar | at its bound "
        "| share of the machine |",
        "|---|---|---:|---:|---|---:|---:|---:|---:|",
    ]
    for result in run.results:
        most = result.ratio_at_bound(run.machine)
        bar = "" if result.bar is None else f"{result.bar:.1f} {'✓' if result.met else '✗'}"
        text.append(
            f"| {result.model} | {result.test} | {spread(result.ours)} | {spread(result.theirs)} "
            f"| {result.setting} | **{result.ratio:.2f}** | {bar} | {f'{most:.2f}' if most else ''} "
            f"| {_share(result, run.machine)} |"
        )
    return "\n".join([*text, *_openvino(run)]) + "\n"


def short_table(run: Run) -> str:
    """Format the README's table: medians of one model."""
    text = [
        f"Tokens per second; {run.versions}, {run.machine.threads} threads each, {run.processor}.",
        "",
        BEST,
        "",
        f"| {README_MODEL} | Puna | llama.cpp | its best setting | ratio |",
        "|---|---:|---:|---|---:|",
    ]
    text += [
        f"| {result.test} | {result.our_rate:.1f} | {result.their_rate:.1f} "
        f"| {result.setting} | {result.ratio:.2f} |"
        for result in run.results
        if result.model == README_MODEL
    ]
    return "\n".join([*text, *_openvino(run)]) + "\n"


def _openvino(run: Run) -> list[str]:
    """Format a table of the rows also compared with OpenVINO GenAI, if it was installed."""
    rows = [result for result in run.results if result.openvino]
    if not rows:
        return []
    text = [
        "",
        "OpenVINO GenAI, which makes integer weights of its own of the same files:",
        "",
        "| model | test | Puna | OpenVINO GenAI | ratio |",
        "|---|---|---:|---:|---:|",
    ]
    for result in rows:
        theirs = statistics.median(result.openvino)
        text.append(
            f"| {result.model} | {result.test} | {result.our_rate:.1f} | {theirs:.1f} "
            f"| {result.our_rate / theirs:.2f} |"
        )
    return text


def _repetitions(run: Run) -> str:
    """Describe the number of runs per row, which is higher for decoding one stream."""
    fewest, most = (pick(len(result.ours) for result in run.results) for pick in (min, max))
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


def chart(run: Run) -> str:
    """Draw the ratios to llama.cpp as an SVG that is readable on light and dark pages."""
    longest = max([3.0, *(result.ratio for result in run.results), *(r.bar or 0 for r in run.results)])
    unit = WIDTH / longest
    height = TOP + ROW * len(run.results) + 34
    bottom = TOP + ROW * len(run.results) + 4

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
    for number, result in enumerate(run.results):
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


TABLES = {DOCS / "performance.md": table, README: short_table}
REPORT = Report(DOCS / "performance.json", "make bench-peers", Run, TABLES, chart)

if __name__ == "__main__":
    REPORT.rewrite()
