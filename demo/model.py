"""The demo model in plain torch: a small Llama (RMSNorm, rotary attention with shared key heads, SwiGLU).

Parameter names follow GGUF's, and rotary pairs are neighbours (2j, 2j+1) as in llama files, so that export is
a plain copy.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    """Sizes of the model. `hidden` and `feed_forward` are multiples of 256, so that every block type fits."""

    vocabulary: int = 3072
    hidden: int = 256
    layers: int = 6
    heads: int = 8
    kv_heads: int = 4
    feed_forward: int = 768
    context: int = 1024
    rope_base: float = 10000.0
    norm_eps: float = 1e-5

    @property
    def head(self) -> int:
        return self.hidden // self.heads


class Block(nn.Module):
    """One layer: x += attention(norm(x)); x += feed_forward(norm(x))."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width, kv = shape.hidden, shape.kv_heads * shape.head
        self.attn_norm = nn.RMSNorm(width, shape.norm_eps)
        self.attn_q = nn.Linear(width, width, bias=False)
        self.attn_k = nn.Linear(width, kv, bias=False)
        self.attn_v = nn.Linear(width, kv, bias=False)
        self.attn_output = nn.Linear(width, width, bias=False)
        self.ffn_norm = nn.RMSNorm(width, shape.norm_eps)
        self.ffn_gate = nn.Linear(width, shape.feed_forward, bias=False)
        self.ffn_up = nn.Linear(width, shape.feed_forward, bias=False)
        self.ffn_down = nn.Linear(shape.feed_forward, width, bias=False)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor
    ) -> Tensor:  # x [B, T, hidden]; cos, sin [T, head/2]
        batch, length, _ = x.shape
        normed = self.attn_norm(x)
        q = self.attn_q(normed).view(batch, length, self.shape.heads, self.shape.head)
        k = self.attn_k(normed).view(batch, length, self.shape.kv_heads, self.shape.head)
        v = self.attn_v(normed).view(batch, length, self.shape.kv_heads, self.shape.head)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
        )
        x = x + self.attn_output(mixed.transpose(1, 2).reshape(batch, length, -1))
        normed = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(normed)) * self.ffn_up(normed))


class DemoModel(nn.Module):
    """The model. The output projection is the embedding matrix."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocabulary, shape.hidden)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = nn.RMSNorm(shape.hidden, shape.norm_eps)
        frequencies = shape.rope_base ** (-torch.arange(0, shape.head, 2) / shape.head)
        angles = torch.outer(torch.arange(shape.context), frequencies)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                scale = (
                    (2 * shape.layers) ** -0.5
                    if name.endswith(("attn_output.weight", "ffn_down.weight"))
                    else 1.0
                )
                nn.init.normal_(parameter, std=0.02 * scale)

    def hidden(self, tokens: Tensor) -> Tensor:
        """Map token ids [B, T] to [B, T, hidden], normed and ready for the output projection."""
        x = self.token_embd(tokens)
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        for block in self.blk:
            x = block(x, cos, sin)
        return self.output_norm(x)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids [B, T] to logits [B, T, vocabulary]."""
        return F.linear(self.hidden(tokens), self.token_embd.weight)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate adjacent pairs of x [B, T, heads, head] by the angles of each position."""
    cos, sin = cos[:, None, :].to(x.dtype), sin[:, None, :].to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
