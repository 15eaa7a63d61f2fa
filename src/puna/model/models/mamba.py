"""Mamba 1 and Falcon Mamba: only state spaces, so no cache that grows.

Gu and Dao, arXiv:2312.00752; Zuo et al., "Falcon Mamba", arXiv:2410.05355, which normalises the selected
inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from puna.gguf.metadata import check_extent, flag, invalid, required
from puna.model.decoder import Decoder
from puna.model.layer_cache import State
from puna.model.options import LayerOptions, TextDefaults, TextOptions
from puna.nn.convolution import convolution_states
from puna.nn.mamba import Mamba
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import MixerLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class ScanLayerOptions(LayerOptions):
    mamba_size: int  # channels
    entries: int  # of a channel's state
    step_rank: int
    taps: int  # inputs a convolution reads, including the newest
    normed_inputs: bool


class Layer(MixerLayer):
    mixer: Mamba = part()


class MambaDecoder(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = TextOptions.read(file, TextDefaults(rotates=False, all_attend=False, halves=True))
        size, entries = required(file, "ssm.inner_size"), required(file, "ssm.state_size")
        rank, taps = required(file, "ssm.time_step_rank"), required(file, "ssm.conv_kernel")
        normed = flag(file, "ssm.dt_b_c_rms", False)
        if taps < 2:
            raise invalid(file, "ssm.conv_kernel", f"is {taps}, which is too short for a convolution")
        state = State((*convolution_states(taps, size), ("memory", (entries, size))))

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            check_extent(file, f"blk.{index}.ssm_out.weight", 1, {"ssm.inner_size": size})
            check_extent(file, f"blk.{index}.ssm_a", 1, {"ssm.state_size": entries})
            check_extent(file, f"blk.{index}.ssm_conv1d.weight", 1, {"ssm.conv_kernel": taps})
            return ScanLayerOptions(
                **vars(layer) | {"remembers": state}, mamba_size=size, entries=entries, step_rank=rank,
                taps=taps, normed_inputs=normed,
            )  # fmt: skip

        return options.each(own)
