"""The forms a kernel is compiled in, for tests that compile all of them and tables that describe them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Variant:
    """A kernel with the types of its arguments and its constants, as one launch compiles it."""

    name: str
    kernel: Any  # the function that `triton.jit` decorated
    signature: Mapping[str, str]  # argument: its type, such as `*fp32`, `i32` or `constexpr`
    constants: Mapping[str, Any] = field(default_factory=dict)
    warps: int = 4
    stages: int = 3
    shared: int = 0  # bytes that blocks of threads can share: devices with less launch another form
    targets: tuple[str, ...] = ()  # devices, such as `sm_90`, that compile it; empty: all
