"""CodeShell: StarCoder 2 with queries, keys and values in one tensor, and no windows.

Xie et al., arXiv:2403.15747.
"""

from __future__ import annotations

from collections.abc import Sequence

from puna.model.models.starcoder2 import Layer as Starcoder2Layer
from puna.model.models.starcoder2 import Starcoder2
from puna.nn.attention import FusedSelfAttention
from puna.nn.module import blocks, part


class Layer(Starcoder2Layer):
    mixer: FusedSelfAttention = part()


class CodeShell(Starcoder2):
    layers: Sequence[Layer] = blocks("blk")
