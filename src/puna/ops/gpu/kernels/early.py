"""Kernels that start before the one ahead of them has ended, on NVIDIA's devices since Hopper.

A step of decoding is hundreds of kernels of a few microseconds, as long as it takes to end one and start the
next. A kernel launched with `early` starts as soon as every program of the one before it has called
`start_next`, and reads and writes nothing that others write until it has called `await_previous`: that waits
for the end of the one before, and so of all before that (NVIDIA's "programmatic dependent launch").
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from puna.ops.gpu.kernels.formats import INTERPRETED, words_in_chunk


@triton.jit
def follow():
    """Wait for the kernel before, and let the next one start; the first call of a kernel."""
    await_previous()
    start_next()


@triton.jit
def await_previous():
    """Wait until all that earlier kernels write can be read."""
    if not INTERPRETED and tl.target_info.cuda_capability_geq(9, 0):
        tl.extra.cuda.gdc_wait()


@triton.jit
def start_next():
    """Let the next kernel start once all programs have called this."""
    if not INTERPRETED and tl.target_info.cuda_capability_geq(9, 0):
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def fetch_chunks(codes, row, chunk, chunks, BITS: tl.constexpr, PARTS: tl.constexpr):
    """Read weights of rows `row` int64 [n] to the L2 cache, from `chunk` of `chunks`, PARTS requests a row.

    These are up to 512 bytes of each, which nothing may be about to write, at multiples of 16 bytes.
    """
    if not INTERPRETED and tl.target_info.cuda_capability_geq(9, 0):
        WORDS: tl.constexpr = words_in_chunk(BITS)
        BYTES: tl.constexpr = WORDS * 2
        SHARE: tl.constexpr = 512 // PARTS
        part = tl.arange(0, PARTS)[None, :]
        start = codes + (row[:, None] * chunks + chunk) * WORDS + part * (SHARE // 2)
        left = tl.minimum((chunks - chunk) * BYTES - part * SHARE, SHARE)
        start, left = tl.broadcast(start.to(tl.int64), left)
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.gt.s32 p, $2, 0; @p cp.async.bulk.prefetch.L2.global [$1], $2; "
            "mov.b32 $0, 0; }",
            "=r,l,r", [start, left], tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


def early(device: torch.device) -> dict[str, bool]:
    """Return the option of a launch whose kernel calls `await_previous`."""
    return {"launch_pdl": True} if ENABLED and device.type == "cuda" and _can_start_early(device) else {}


#: For comparisons.
ENABLED = True


@functools.cache
def _can_start_early(device: torch.device) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)
