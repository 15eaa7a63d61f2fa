"""Mixtures of experts without gates, each a feed-forward network as in the first transformers."""

from __future__ import annotations

import numpy as np

from puna.nn.experts import ExpertOptions
from puna.nn.layers import Linear, SeparateLinears
from puna.nn.module import Module, weight
from puna.ops import Array


class PlainExperts(Module):
    """The sum over a token's experts of `weight * down(gelu(up(x)))`; `options.routing` chooses them.

    A pass over whole texts sends many tokens through each expert, so every expert's are one product of
    matrices. It must see on the host who is chosen: it cannot be recorded, and encoders are not.
    """

    options: ExpertOptions
    router: Linear = weight("ffn_gate_inp", "expert_count", "hidden_size")
    up: SeparateLinears = weight("ffn_up_exps", "expert_count", "expert_feed_forward_size", "hidden_size")
    down: SeparateLinears = weight("ffn_down_exps", "expert_count", "hidden_size", "expert_feed_forward_size")

    def forward(self, hidden: Array) -> Array:
        """[rows, hidden] to the same."""
        ops = self.ops
        chosen, shares = ops.route(self.router(hidden), self.options.routing)
        experts = ops.numpy(chosen)  # [rows, used]
        order = np.argsort(experts, axis=None, kind="stable")  # pairs of a row and its expert, by expert
        ends = np.cumsum(np.bincount(experts.reshape(-1), minlength=self.options.expert_count))
        parts = []
        for expert, pairs in enumerate(np.split(order, ends[:-1])):
            if len(pairs):
                inputs = hidden[ops.array(pairs // experts.shape[1])]
                parts.append(self.down.linears[expert](ops.gelu(self.up.linears[expert](inputs))))
        by_pair = ops.concatenate(parts)[ops.array(np.argsort(order))] * shares.reshape(-1, 1)
        by_row = by_pair.reshape(*experts.shape, -1)
        total: Array = by_row[:, 0]
        for slot in range(1, experts.shape[1]):
            total = total + by_row[:, slot]
        return total
