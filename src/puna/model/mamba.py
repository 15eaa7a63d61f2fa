"""Options of layers with Mamba 1 or 2, read from metadata and checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from puna.gguf.metadata import check_extent, flag, invalid, required
from puna.model.layer_cache import Remembered, State
from puna.model.options import LayerOptions, TextOptions
from puna.nn.attention import SelfAttention
from puna.nn.convolution import convolution_states
from puna.nn.mamba import Mamba2
from puna.ops import MemoryShape

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class MambaLayerOptions(LayerOptions):
    mamba_heads: int
    mamba_head_dim: int  # of values
    mamba_groups: int  # groups of heads that share keys and queries
    mamba_state_dim: int  # of keys and queries
    taps: int  # inputs a convolution reads, including the newest

    @property
    def mamba_size(self) -> int:
        return self.mamba_heads * self.mamba_head_dim

    @property
    def mamba_key_size(self) -> int:
        return self.mamba_groups * self.mamba_state_dim

    @property
    def mamba_group_size(self) -> int:
        return self.mamba_size // self.mamba_groups

    @property
    def mamba_state(self) -> State:
        """State of a Mamba 2 layer."""
        sizes = self.mamba_size, self.mamba_key_size, self.mamba_key_size
        memory = MemoryShape(self.mamba_heads, self.mamba_state_dim, self.mamba_head_dim)
        return State((*convolution_states(self.taps, *sizes), ("memory", memory)))


def with_mamba(
    file: GGUFFile, options: TextOptions, remembers: Callable[[MambaLayerOptions], Remembered]
) -> TextOptions:
    """Return `options` with Mamba 2's sizes; `remembers(layer)` is what each layer keeps.

    Raises `ModelError` that names the key and its value.
    """
    size, heads = required(file, "ssm.inner_size"), required(file, "ssm.time_step_rank")
    groups, taps = required(file, "ssm.group_count", 1), required(file, "ssm.conv_kernel")
    state = required(file, "ssm.state_size")
    if size % heads:
        raise invalid(file, "ssm.inner_size", f"is {size}, which {heads} heads cannot share")
    if heads % groups:
        raise invalid(file, "ssm.group_count", f"is {groups}, which does not divide {heads} heads")
    if taps < 2:
        raise invalid(file, "ssm.conv_kernel", f"is {taps}, which is too short for a convolution")

    def own(index: int, layer: LayerOptions) -> LayerOptions:
        check_extent(file, f"blk.{index}.ssm_out.weight", 1, {"ssm.inner_size": size})
        check_extent(file, f"blk.{index}.ssm_a", 0, {"ssm.time_step_rank": heads})
        kernels, rows = f"blk.{index}.ssm_conv1d.weight", size + 2 * groups * state
        check_extent(file, kernels, 1, {"ssm.conv_kernel": taps})
        if kernels in file.tensors and (found := file.tensors[kernels].shape[0]) != rows:
            complaint = f"is {state} and with {groups} groups makes {rows} rows of '{kernels}', not {found}"
            raise invalid(file, "ssm.state_size", complaint)
        sized = MambaLayerOptions(
            **vars(layer), mamba_heads=heads, mamba_head_dim=size // heads, mamba_groups=groups,
            mamba_state_dim=state, taps=taps,
        )  # fmt: skip
        return dataclasses.replace(sized, remembers=remembers(sized))

    return options.each(own)


@dataclass(frozen=True, kw_only=True)
class ScanLayerOptions(LayerOptions):
    """Options of a layer with Mamba 1."""

    mamba_size: int  # channels
    entries: int  # of a channel's state
    step_rank: int
    taps: int  # inputs a convolution reads, including the newest
    normed_inputs: bool

    @property
    def scan_state(self) -> State:
        """State of a Mamba 1 layer."""
        memory = self.entries, self.mamba_size
        return State((*convolution_states(self.taps, self.mamba_size), ("memory", memory)))


def with_scan(
    file: GGUFFile, options: TextOptions, remembers: Callable[[ScanLayerOptions], Remembered]
) -> TextOptions:
    """Return `options` with Mamba 1's sizes; `remembers(layer)` is what each layer keeps.

    Raises `ModelError` that names the key and its value.
    """
    size, entries = required(file, "ssm.inner_size"), required(file, "ssm.state_size")
    rank, taps = required(file, "ssm.time_step_rank"), required(file, "ssm.conv_kernel")
    normed = flag(file, "ssm.dt_b_c_rms", False)
    if taps < 2:
        raise invalid(file, "ssm.conv_kernel", f"is {taps}, which is too short for a convolution")

    def own(index: int, layer: LayerOptions) -> LayerOptions:
        check_extent(file, f"blk.{index}.ssm_out.weight", 1, {"ssm.inner_size": size})
        check_extent(file, f"blk.{index}.ssm_a", 1, {"ssm.state_size": entries})
        check_extent(file, f"blk.{index}.ssm_conv1d.weight", 1, {"ssm.conv_kernel": taps})
        sized = ScanLayerOptions(
            **vars(layer), mamba_size=size, entries=entries, step_rank=rank, taps=taps, normed_inputs=normed
        )
        return dataclasses.replace(sized, remembers=remembers(sized))

    return options.each(own)


def attends_or_state(layer: MambaLayerOptions) -> Remembered:
    """Return attention's memory for layers with key/value heads, and Mamba's state for others."""
    return layer.remembers if layer.kv_heads else layer.mamba_state


def attention_or_mamba(options: MambaLayerOptions) -> type[SelfAttention | Mamba2]:
    return SelfAttention if options.kv_heads else Mamba2
