"""The network of demo-vision in plain torch: a very small Gemma 3, text model and SigLIP tower.

Parameters are named as in GGUF files, so that export is a plain copy. Attention between a picture and its
text follows the masks that `train.py` makes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    """Sizes of the model."""

    vocabulary: int = 768
    hidden: int = 96
    layers: int = 3
    heads: int = 3
    feed_forward: int = 256
    context: int = 1024
    rope_base: float = 10000.0
    norm_eps: float = 1e-6
    image: int = 80  # pixels
    patch: int = 10  # pixels
    pool: int = 2  # side of the square of patches that becomes a row
    vision_hidden: int = 96
    vision_layers: int = 4
    vision_heads: int = 3
    vision_feed_forward: int = 384

    @property
    def head(self) -> int:
        return self.hidden // self.heads

    @property
    def side(self) -> int:
        """The patches along a picture's side."""
        return self.image // self.patch

    @property
    def rows(self) -> int:
        """The number of rows of a picture."""
        return (self.side // self.pool) ** 2


class VisionBlock(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, inner = shape.vision_hidden, shape.vision_feed_forward
        self.heads = shape.vision_heads
        self.layer_norm1 = nn.LayerNorm(width, shape.norm_eps)
        self.attn_q = nn.Linear(width, width)
        self.attn_k = nn.Linear(width, width)
        self.attn_v = nn.Linear(width, width)
        self.attn_output = nn.Linear(width, width)
        self.layer_norm2 = nn.LayerNorm(width, shape.norm_eps)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, inner), "fc2": nn.Linear(inner, width)})

    def forward(self, x: Tensor) -> Tensor:  # [B, patches, hidden]
        normed = self.layer_norm1(x)
        q, k, v = (
            part(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.attn_q, self.attn_k, self.attn_v)
        )
        mixed = F.scaled_dot_product_attention(q, k, v)
        x = x + self.attn_output(mixed.transpose(1, 2).flatten(-2))
        return x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.layer_norm2(x)), approximate="tanh"))


class Tower(nn.Module):
    """The vision tower, from pictures to patches."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.patch_embedding = nn.Conv2d(3, shape.vision_hidden, shape.patch, shape.patch)
        self.position_embedding = nn.Embedding(shape.side**2, shape.vision_hidden)
        self.blk = nn.ModuleList(VisionBlock(shape) for _ in range(shape.vision_layers))
        self.post_layernorm = nn.LayerNorm(shape.vision_hidden, shape.norm_eps)

    def forward(self, pixels: Tensor) -> Tensor:
        """Map pictures [B, 3, image, image] from -1 to 1 to [B, patches, hidden]."""
        x = self.patch_embedding(pixels).flatten(2).transpose(1, 2) + self.position_embedding.weight
        for block in self.blk:
            x = block(x)
        return self.post_layernorm(x)


class Projector(nn.Module):
    """The projector from patches to rows in the text."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.mm_soft_emb_norm = nn.RMSNorm(shape.vision_hidden, shape.norm_eps)
        self.mm_input_projection = nn.ParameterDict(
            {"weight": nn.Parameter(torch.empty(shape.vision_hidden, shape.hidden))}
        )

    def forward(self, patches: Tensor) -> Tensor:  # [B, patches, vision hidden] to [B, rows, hidden]
        side, pool = self.shape.side // self.shape.pool, self.shape.pool
        grid = patches.unflatten(1, (side, pool, side, pool)).mean((2, 4)).flatten(1, 2)
        return self.mm_soft_emb_norm(grid) @ self.mm_input_projection["weight"]


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.hidden
        self.heads = shape.heads
        self.attn_norm = nn.RMSNorm(width, shape.norm_eps)
        self.attn_q = nn.Linear(width, width, bias=False)
        self.attn_k = nn.Linear(width, width, bias=False)
        self.attn_v = nn.Linear(width, width, bias=False)
        self.attn_q_norm = nn.RMSNorm(shape.head, shape.norm_eps)
        self.attn_k_norm = nn.RMSNorm(shape.head, shape.norm_eps)
        self.attn_output = nn.Linear(width, width, bias=False)
        self.post_attention_norm = nn.RMSNorm(width, shape.norm_eps)
        self.ffn_norm = nn.RMSNorm(width, shape.norm_eps)
        self.ffn_gate = nn.Linear(width, shape.feed_forward, bias=False)
        self.ffn_up = nn.Linear(width, shape.feed_forward, bias=False)
        self.ffn_down = nn.Linear(shape.feed_forward, width, bias=False)
        self.post_ffw_norm = nn.RMSNorm(width, shape.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        # x [B, T, hidden]; cos, sin [B, 1, T, head]; mask [B, 1, T, T]
        normed = self.attn_norm(x)
        q, k, v = (
            part(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.attn_q, self.attn_k, self.attn_v)
        )
        q, k = rotate(self.attn_q_norm(q), cos, sin), rotate(self.attn_k_norm(k), cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.post_attention_norm(self.attn_output(mixed.transpose(1, 2).flatten(-2)))
        normed = self.ffn_norm(x)
        inner = F.gelu(self.ffn_gate(normed), approximate="tanh") * self.ffn_up(normed)
        return x + self.post_ffw_norm(self.ffn_down(inner))


class VisionModel(nn.Module):
    """The model. The output projection is the embedding matrix."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocabulary, shape.hidden)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = nn.RMSNorm(shape.hidden, shape.norm_eps)
        self.v = Tower(shape)
        self.mm = Projector(shape)
        for name, parameter in self.named_parameters():
            if name == "token_embd.weight":
                nn.init.normal_(parameter, std=shape.hidden**-0.5)
            elif name.endswith("position_embedding.weight"):
                with torch.no_grad():
                    parameter.copy_(waves(shape.side, shape.vision_hidden))
            elif name.endswith(("attn_output.weight", "fc2.weight")) and name.startswith("v."):
                nn.init.normal_(parameter, std=0.5 * parameter.shape[1] ** -0.5 / shape.vision_layers**0.5)
            elif parameter.dim() >= 2:
                nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
            elif name.endswith(("post_attention_norm.weight", "post_ffw_norm.weight")):
                nn.init.constant_(parameter, shape.layers**-0.5)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def rows(self, pixels: Tensor) -> Tensor:
        """Map pictures [B, 3, image, image] to rows [B, rows, hidden] in the text."""
        return self.mm(self.v(pixels))

    def embed(self, tokens: Tensor) -> Tensor:
        return self.token_embd(tokens) * math.sqrt(self.shape.hidden)

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


def waves(side: int, width: int) -> Tensor:
    """Return the positions of side x side patches as waves along both axes: [patches, width].

    Position embeddings start with these values, by which patches find their neighbours much sooner than with
    random numbers.
    """
    frequencies = torch.pi * torch.logspace(0, -math.log10(2 * side), width // 4)
    angles = torch.outer(torch.arange(side), frequencies)
    axis = torch.cat((angles.sin(), angles.cos()), -1)
    rows, columns = axis[:, None].expand(-1, side, -1), axis[None].expand(side, -1, -1)
    return torch.cat((rows, columns), -1).flatten(0, 1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [B, heads, T, head], pairing the first half of a head with the second."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin
