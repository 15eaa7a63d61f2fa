"""The network of demo-audio in plain torch: a very small Qwen2-Audio, text model and Whisper's encoder.

Parameters are named as in GGUF files, so that export is a plain copy. Text attends to what `rows.py` allows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from demo.vision.model import rotate


@dataclass(frozen=True)
class Shape:
    """Sizes of the model."""

    vocabulary: int = 512
    hidden: int = 96
    layers: int = 3
    heads: int = 3
    feed_forward: int = 224
    context: int = 1024
    rope_base: float = 10000.0
    norm_eps: float = 1e-6
    bands: int = 80
    positions: int = 250  # states of a window, each of 20 ms
    audio_hidden: int = 96
    audio_layers: int = 3
    audio_heads: int = 3
    audio_feed_forward: int = 288
    audio_norm_eps: float = 1e-5

    @property
    def head(self) -> int:
        return self.hidden // self.heads


class AudioBlock(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, inner = shape.audio_hidden, shape.audio_feed_forward
        self.heads = shape.audio_heads
        self.ln1 = nn.LayerNorm(width, shape.audio_norm_eps)
        self.attn_q = nn.Linear(width, width)
        self.attn_k = nn.Linear(width, width, bias=False)
        self.attn_v = nn.Linear(width, width)
        self.attn_out = nn.Linear(width, width)
        self.ln2 = nn.LayerNorm(width, shape.audio_norm_eps)
        self.ffn_up = nn.Linear(width, inner)
        self.ffn_down = nn.Linear(inner, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # x [B, states, hidden], mask [B, 1, 1, states]
        normed = self.ln1(x)
        q, k, v = (
            part(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.attn_q, self.attn_k, self.attn_v)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.attn_out(mixed.transpose(1, 2).flatten(-2))
        return x + self.ffn_down(F.gelu(self.ffn_up(self.ln2(x))))


class Tower(nn.Module):
    """The audio tower, from spectrograms to normed pairs of states."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.audio_hidden
        self.conv1d = nn.ModuleDict(
            {"1": nn.Conv1d(shape.bands, width, 3, padding=1), "2": nn.Conv1d(width, width, 3, 2, padding=1)}
        )
        self.position_embd = nn.Embedding(shape.positions, width)
        self.blk = nn.ModuleList(AudioBlock(shape) for _ in range(shape.audio_layers))
        self.post_ln = nn.LayerNorm(width, shape.audio_norm_eps)

    def forward(self, features: Tensor, counts: Tensor) -> Tensor:
        """Map spectrograms [B, frames, bands] to [B, rows, hidden]; `counts` [B] are their numbers of states.

        Two states become a row. There are at least as many frames as an even number of states reads.
        """
        states = int(counts.max()) + int(counts.max()) % 2
        x = F.gelu(self.conv1d["1"](features.transpose(1, 2)))
        x = F.gelu(self.conv1d["2"](x))[:, :, :states].transpose(1, 2) + self.position_embd.weight[:states]
        mask = torch.arange(states) < counts[:, None]
        for block in self.blk:
            x = block(x, mask[:, None, None])
        return self.post_ln(x.unflatten(1, (-1, 2)).mean(2))


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.hidden
        self.heads = shape.heads
        self.attn_norm = nn.RMSNorm(width, shape.norm_eps)
        self.attn_q = nn.Linear(width, width)
        self.attn_k = nn.Linear(width, width)
        self.attn_v = nn.Linear(width, width)
        self.attn_output = nn.Linear(width, width, bias=False)
        self.ffn_norm = nn.RMSNorm(width, shape.norm_eps)
        self.ffn_gate = nn.Linear(width, shape.feed_forward, bias=False)
        self.ffn_up = nn.Linear(width, shape.feed_forward, bias=False)
        self.ffn_down = nn.Linear(shape.feed_forward, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        # x [B, T, hidden]; cos, sin [B, 1, T, head]; mask [B, 1, T, T]
        normed = self.attn_norm(x)
        q, k, v = (
            part(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.attn_q, self.attn_k, self.attn_v)
        )
        mixed = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, attn_mask=mask)
        x = x + self.attn_output(mixed.transpose(1, 2).flatten(-2))
        normed = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(normed)) * self.ffn_up(normed))


class AudioModel(nn.Module):
    """The model. The output projection is the embedding matrix."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocabulary, shape.hidden)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = nn.RMSNorm(shape.hidden, shape.norm_eps)
        self.a = Tower(shape)
        self.mm = nn.ModuleDict({"a": nn.ModuleDict({"fc": nn.Linear(shape.audio_hidden, shape.hidden)})})
        for name, parameter in self.named_parameters():
            if name == "token_embd.weight":
                nn.init.normal_(parameter, std=shape.hidden**-0.5)
            elif name == "a.position_embd.weight":
                with torch.no_grad():
                    parameter.copy_(waves(shape.positions, shape.audio_hidden))
            elif name.endswith(("attn_out.weight", "attn_output.weight", "ffn_down.weight")):
                layers = shape.audio_layers if name.startswith("a.") else shape.layers
                nn.init.normal_(parameter, std=0.5 * parameter.shape[1] ** -0.5 / layers**0.5)
            elif parameter.dim() >= 2:
                nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def rows(self, heard: Tensor) -> Tensor:
        """Project the tower's results [B, rows, audio hidden] to rows of the text [B, rows, hidden]."""
        return self.mm["a"]["fc"](heard)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.token_embd(tokens)

    def hidden(self, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Evaluate embedded inputs [B, T, hidden] at `positions` [B, T] with an attention mask [B, T, T].

        Returns the same shape, normed and ready for the output projection.
        """
        dim = self.shape.head
        frequencies = self.shape.rope_base ** (-torch.arange(0, dim, 2) / dim)
        angles = (positions[..., None] * frequencies).repeat(1, 1, 2)[:, None]
        cos, sin = angles.cos(), angles.sin()
        for block in self.blk:
            x = block(x, cos, sin, mask[:, None])
        return self.output_norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.token_embd.weight)


def waves(count: int, width: int) -> Tensor:
    """Return positions as Whisper's encoder has them: sines and cosines, [count, width]."""
    rates = torch.exp(-math.log(10000) / (width // 2 - 1) * torch.arange(width // 2))
    angles = torch.arange(count)[:, None] * rates
    return torch.cat((angles.sin(), angles.cos()), -1)
