"""Output of `make docs-gpu`: registers and memory of the GPU's kernels, and the times to expect of them.

python bench/gpu_report.py        # regenerates the tables from docs/gpu.json
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from pages import DOCS, Report

#: The bytes of memory that a block of threads can share on each kind of device.
TARGETS = {
    "sm_80": 163 << 10,
    "sm_90": 227 << 10,
    "sm_100": 227 << 10,
    "gfx942": 64 << 10,
    "gfx1100": 64 << 10,
}

# What an H200 was seen to do: copies count bytes read and written; products are of float16 or bfloat16, and
# other arithmetic float32. A row of a recurrent layer waits for the one before it, about 400 clocks.
BYTES_PER_S = 4.3e12
PRODUCTS_PER_S = 780e12
OPERATIONS_PER_S = 60e12
ROW_S = 400 / 1.98e9


@dataclass
class Form:
    """A kernel compiled for one kind of device with certain constants."""

    module: str
    kernel: str
    name: str
    target: str
    registers: int = 0  # of a thread
    spilled: int = 0  # bytes of a thread that did not fit in registers
    shared: int = 0  # bytes of a block of threads
    failure: str = ""  # the compiler's error


@dataclass
class Run:
    forms: list[Form]


@dataclass(frozen=True)
class Launch:
    """The least that a launch has to do: bytes to read and write, and operations."""

    name: str
    bytes: float
    operations: float
    products: bool = False  # on tensor cores
    rows: int = 0  # that wait for one another

    @property
    def limits(self) -> dict[str, float]:
        """The seconds that each limit allows at least."""
        rate = PRODUCTS_PER_S if self.products else OPERATIONS_PER_S
        return {
            "memory": self.bytes / BYTES_PER_S,
            "arithmetic": self.operations / rate,
            "order": self.rows * ROW_S,
        }


Q4_K_BYTES, Q6_K_BYTES = 144 / 256, 210 / 256  # of a weight


def launches() -> Iterator[Launch]:
    """Yield launches of models with hidden vectors of 4096 numbers, unless stated."""
    inner = 4096 * 14336
    for rows in (1, 16, 4096):
        numbers = 4 * rows * (4096 + 14336)
        yield Launch(
            f"product, Q4_K 14336x4096, T={rows}", inner * Q4_K_BYTES + numbers, 2 * rows * inner, True
        )
    head = 152064 * 4096
    yield Launch("product, Q6_K 152064x4096, T=1", head * Q6_K_BYTES + 4 * 152064, 2 * head, True)
    expert = 3 * 2048 * 768
    for rows, touched in ((1, 8), (16, 82), (4096, 128)):
        yield Launch(
            f"8 of 128 experts, Q4_K 768x2048, T={rows}",
            touched * expert * Q4_K_BYTES + 2 * 4 * rows * 2048, 2 * rows * 8 * expert, True,
        )  # fmt: skip
    cell = 2 * 8 * 128  # a key and a value of 8 heads
    for name, size in (("F16", 2), ("Q8_0", 34 / 32)):
        yield Launch(f"attention, {name}, T=1, 32768 cells", 32768 * cell * size, 4 * 32 * 128 * 32768, True)
    yield Launch(
        "attention, F16, T=4096, prompt",
        4096 * (cell * 2 + 2 * 4 * 4096),
        4 * 32 * 128 * 4096 * 4096 / 2,
        True,
    )
    yield Launch("add_rms_norm, T=4096", 4 * 4 * 4096 * 4096, 5 * 4096 * 4096)
    yield Launch("swiglu, 14336 wide, T=4096", 3 * 4 * 4096 * 14336, 30 * 4096 * 14336)
    yield Launch("rope, T=4096", 2 * 4 * 4096 * 4096, 3 * 4096 * 4096)
    state = 32 * 128 * 128
    for rows in (1, 4096):
        yield Launch(
            f"gated delta, T={rows}",
            2 * 4 * state + 4 * rows * (2 * 16 + 2 * 32) * 128, 8 * rows * state, rows=rows,
        )  # fmt: skip


def kernels(forms: Sequence[Form]) -> str:
    """Return the table of registers and kilobytes of shared memory: the most of any form of a module."""
    lines = [
        f"| kernels | forms | {' | '.join(TARGETS)} |",
        f"|---|---:|{'---|' * len(TARGETS)}",
    ]
    for module, group in groupby(sorted(forms, key=lambda form: form.module), key=lambda form: form.module):
        of_module = list(group)
        cells = [_cell([form for form in of_module if form.target == target]) for target in TARGETS]
        count = len({form.name for form in of_module})
        lines.append(f"| {module} | {count} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(forms: Sequence[Form]) -> str:
    built = [form for form in forms if not form.failure]
    failed, spilling = len(forms) - len(built), sum(form.spilled > 0 for form in built)
    notes = [f"{spilling} spill"] * bool(spilling) + [f"{failed} fail"] * bool(failed)
    if not built:
        return ", ".join(notes)
    registers, shared = max(form.registers for form in built), max(form.shared for form in built)
    return f"{registers} / {shared / 1024:.0f}" + f" ({', '.join(notes)})" * bool(notes)


def expected() -> str:
    """Return the table of the times to expect on an H200."""
    lines = ["| launch | MB | us | limit |", "|---|---:|---:|---|"]
    for launch in launches():
        limit = max(launch.limits, key=launch.limits.__getitem__)
        lines.append(
            f"| {launch.name} | {launch.bytes / 1e6:.1f} | {launch.limits[limit] * 1e6:.0f} | {limit} |"
        )
    return "\n".join(lines) + "\n"


def tables(run: Run) -> str:
    return f"{kernels(run.forms)}\n{expected()}"


REPORT = Report(DOCS / "gpu.json", "make docs-gpu", Run, {DOCS / "gpu.md": tables})

if __name__ == "__main__":
    REPORT.rewrite()
