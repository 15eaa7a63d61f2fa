"""Tiny random models of Jina Embeddings 2, which transformers does not have, written down from the papers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from tests.tiny_bert import randomised
from tests.tiny_encoders import SIZES, TinyEncoder

HIDDEN, FEED_FORWARD = 96, SIZES["intermediate_size"]
HEADS = 6  # no power of two


class _Layer(nn.Module):
    """Names are those of the file's tensors."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.gates = kind != "plain"
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            setattr(self, name, nn.Linear(HIDDEN, HIDDEN))
        self.attn_output_norm, self.layer_output_norm = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        if kind == "code":
            self.attn_q_norm, self.attn_k_norm = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
            self.attn_norm_2 = nn.LayerNorm(HIDDEN)
        if kind == "gated":
            self.ffn_gate = nn.Linear(HIDDEN, FEED_FORWARD, bias=False)
        joined = 2 if kind == "code" else 1
        self.ffn_up = nn.Linear(HIDDEN, joined * FEED_FORWARD, bias=kind == "plain")
        self.ffn_down = nn.Linear(FEED_FORWARD, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        count = len(x)
        q, k, v = self.attn_q(x), self.attn_k(x), self.attn_v(x)
        if hasattr(self, "attn_q_norm"):
            q, k = self.attn_q_norm(q), self.attn_k_norm(k)
        q, k, v = (each.reshape(count, HEADS, -1).transpose(0, 1) for each in (q, k, v))
        distance = (torch.arange(count)[:, None] - torch.arange(count)).abs()
        slopes = torch.tensor(alibi_slopes(HEADS))[:, None, None]
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]) - slopes * distance
        mixed = self.attn_output((scores.softmax(-1) @ v).transpose(0, 1).reshape(count, -1))
        hidden = self.attn_output_norm(mixed + x)
        if hasattr(self, "attn_norm_2"):
            hidden = self.attn_norm_2(hidden + x)
        up = self.ffn_up(hidden)
        if hasattr(self, "ffn_gate"):
            up = nn.functional.gelu(self.ffn_gate(hidden)) * up
        elif self.gates:
            first, second = up.chunk(2, -1)
            gate, up = (second, first) if hasattr(self, "attn_norm_2") else (first, second)
            up = nn.functional.gelu(gate) * up
        else:
            up = nn.functional.gelu(up)
        return self.layer_output_norm(hidden + self.ffn_down(up))


def alibi_slopes(heads: int) -> list[float]:
    """As the authors of ALiBi compute them (github.com/ofirpress/attention_with_linear_biases)."""
    if math.log2(heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start * start**i for i in range(heads)]
    closest = 2 ** math.floor(math.log2(heads))
    return alibi_slopes(closest) + alibi_slopes(2 * closest)[0::2][: heads - closest]


class _Jina(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.token_embd = nn.Embedding(SIZES["vocab_size"], HIDDEN)
        self.token_types = nn.Embedding(2, HIDDEN)
        self.token_embd_norm = nn.LayerNorm(HIDDEN)
        self.blk = nn.ModuleList(_Layer(kind) for _ in range(SIZES["num_hidden_layers"]))
        for norm in (each for each in self.modules() if isinstance(each, nn.LayerNorm)):
            norm.eps = 1e-12

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> SimpleNamespace:
        hidden = self.token_embd_norm(self.token_embd(ids[0]) + self.token_types.weight[0])
        for layer in self.blk:
            hidden = layer(hidden)
        return SimpleNamespace(last_hidden_state=hidden[None])


@dataclass(frozen=True)
class TinyJinaBertV2(TinyEncoder):
    """`kind` is that of the feed-forward half, as files have it: "gated", "plain", or "code"'s in one."""

    architecture = "jina-bert-v2"
    kind: str = "gated"

    def build(self) -> Any:
        torch.manual_seed(self.seed)
        return randomised(_Jina(self.kind).float().eval())

    def metadata(self) -> dict[str, Any]:
        return super().metadata() | {"attention.head_count": HEADS, "embedding_length": HIDDEN}
