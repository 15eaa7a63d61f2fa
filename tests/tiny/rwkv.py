"""Tiny random models of RWKV 7 and ARWKV, and a torch reference by the paper's formulas.

Peng et al., "RWKV-7 Goose", arXiv:2503.14456, section 4. Modules have the names of published checkpoints.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.tiny.converted import Contents
from tests.tiny.decoders import TinyDecoder
from tests.tiny.llama import vocabulary

WIDE, LAYERS = 96, 3
RANKS = {"decay_low_rank_dim": 12, "a_low_rank_dim": 10, "v_low_rank_dim": 6, "gate_low_rank_dim": 14}


def before(x: Tensor) -> Tensor:
    """Return each input's predecessor [T, hidden]; zeros before the first."""
    return F.pad(x, (0, 0, 1, 0))[:-1]


class LowRank(nn.Module):
    def __init__(self, size: int, rank: int, activation: nn.Module, *, bias: bool = True) -> None:
        super().__init__()
        inner = nn.Linear(size, rank, bias=False), activation, nn.Linear(rank, size, bias=bias)
        self.lora = nn.Sequential(*inner)

    def forward(self, x: Tensor) -> Tensor:
        return self.lora(x)


class Mix(nn.Module):
    """Time mix; it sets `first` to the first layer's values."""

    def __init__(self, config: Any, layer: int, *, gated: bool) -> None:
        super().__init__()
        size, self.dim = config.hidden_size, config.head_dim
        self.inputs = "rwkvag" if gated else "rwkva"
        for name in self.inputs:
            self.register_parameter(f"x_{name}", nn.Parameter(torch.zeros(1, 1, size)))
        self.k_k, self.k_a = (nn.Parameter(torch.zeros(size)) for _ in range(2))
        self.r_k = nn.Parameter(torch.zeros(size // self.dim, self.dim))
        for name in "rkvo":
            self.add_module(f"{name}_proj", nn.Linear(size, size, bias=False))
        self.w_lora = LowRank(size, config.decay_low_rank_dim, nn.Tanh())
        self.a_lora = LowRank(size, config.a_low_rank_dim, nn.Identity())
        if layer:
            self.v_lora = LowRank(size, config.v_low_rank_dim, nn.Identity())
        if gated:
            self.g_lora = LowRank(size, config.gate_low_rank_dim, nn.Sigmoid(), bias=False)
            self.g_norm = nn.GroupNorm(size // self.dim, size, eps=64e-5)
        self.gated, self.layer = gated, layer

    def forward(self, x: Tensor, first: list[Tensor]) -> Tensor:
        shifted = {name: x + (before(x) - x) * getattr(self, f"x_{name}").reshape(-1) for name in self.inputs}
        r, k, v = (getattr(self, f"{name}_proj")(shifted[name]) for name in "rkv")
        decay = torch.exp(-math.exp(-0.5) * torch.sigmoid(self.w_lora(shifted["w"])))
        rate = torch.sigmoid(self.a_lora(shifted["a"]))
        if not self.layer:
            first.append(v)
        else:
            v = torch.lerp(v, first[0], torch.sigmoid(self.v_lora(shifted["v"])))
        heads = len(x), -1, self.dim
        removal = F.normalize((k * self.k_k).reshape(heads), dim=-1)
        k = k * (1 + (rate - 1) * self.k_a)
        r, k, v, decay, rate = (each.reshape(heads) for each in (r, k, v, decay, rate))
        state, found = torch.zeros(*r.shape[1:], self.dim), []  # [heads, values, keys]
        for t in range(len(x)):
            kept = torch.diag_embed(decay[t]) - removal[t, :, :, None] * (rate[t] * removal[t])[:, None]
            state = state @ kept + v[t, :, :, None] * k[t, :, None]
            found.append((state @ r[t, :, :, None])[..., 0])
        y = torch.stack(found).reshape(x.shape)
        if self.gated:
            y = self.g_norm(y)
        y = y + ((r * k * self.r_k).sum(-1, keepdim=True) * v).reshape(x.shape)
        return self.o_proj(y * self.g_lora(shifted["g"]) if self.gated else y)


class Feed(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.x_k = nn.Parameter(torch.zeros(1, 1, size))
        self.key, self.value = nn.Linear(size, WIDE, bias=False), nn.Linear(WIDE, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.value(torch.relu(self.key(x + (before(x) - x) * self.x_k.reshape(-1))) ** 2)


class GatedFeed(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(size, WIDE, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(WIDE, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class RWKV7ForCausalLM(nn.Module):
    """RWKV 7, or with `transformer` ARWKV, in the layers of a transformer and perhaps without gates."""

    def __init__(self, config: Any, *, transformer: bool, gated: bool) -> None:
        super().__init__()
        self.config = config
        size = config.hidden_size
        norm, feed = (nn.RMSNorm, GatedFeed) if transformer else (nn.LayerNorm, Feed)
        self.model = nn.Module()
        self.model.embeddings = nn.Embedding(config.vocab_size, size)
        self.model.layers = nn.ModuleList()
        for i in range(LAYERS):
            layer = nn.Module()
            if not i and not transformer:
                layer.pre_norm = norm(size, 1e-5)
            layer.attn_norm, layer.ffn_norm = norm(size, 1e-5), norm(size, 1e-5)
            layer.attn, layer.ffn = Mix(config, i, gated=gated), feed(size)
            self.model.layers.append(layer)
        self.model.norm = norm(size, 1e-5)
        self.lm_head = nn.Linear(size, config.vocab_size, bias=False)

    def forward(self, tokens: Tensor) -> Any:
        hidden, first = self.model.embeddings(tokens[0]), []
        for layer in self.model.layers:
            hidden = layer.pre_norm(hidden) if hasattr(layer, "pre_norm") else hidden
            hidden = hidden + layer.attn(layer.attn_norm(hidden), first)
            hidden = hidden + layer.ffn(layer.ffn_norm(hidden))
        return SimpleNamespace(logits=self.lm_head(self.model.norm(hidden))[None])


@dataclass(frozen=True)
class TinyRwkv(TinyDecoder):
    """Tiny RWKV or ARWKV with published names; ARWKV, which has none, is converted as an RWKV."""

    hf: str = "rwkv7"
    hidden: int = 64
    dim: int = 16  # of a head
    gated: bool = True
    ranks: Mapping[str, int] = field(default_factory=lambda: RANKS)

    def config(self) -> Any:
        return SimpleNamespace(
            vocab_size=len(vocabulary()), hidden_size=self.hidden, intermediate_size=WIDE, head_dim=self.dim,
            norm_eps=1e-5, num_hidden_layers=LAYERS, max_position_embeddings=256, tie_word_embeddings=False,
            **self.ranks,
        )  # fmt: skip

    def untrained(self) -> Any:
        return RWKV7ForCausalLM(self.config(), transformer=self.architecture == "arwkv7", gated=self.gated)

    def build(self) -> Any:
        model = super().build()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".x_" in name:
                    parameter.copy_(torch.rand_like(parameter))
        return model

    def contents(self, model: Any) -> Contents:
        if self.architecture != "arwkv7":
            return super().contents(model)
        feeds: dict[str, Tensor] = {}
        rest = copy.deepcopy(model)
        for number, layer in enumerate(rest.model.layers):
            for name, values in layer.ffn.state_dict().items():
                feeds[f"blk.{number}.{FEED[name]}"] = values.numpy()
            del layer.ffn
        found = super().contents(rest)
        found.rename({"attn_norm_2.weight": "ffn_norm.weight"})
        found.tensors |= feeds
        return found


FEED = {
    "gate_proj.weight": "ffn_gate.weight", "up_proj.weight": "ffn_up.weight",
    "down_proj.weight": "ffn_down.weight",
}  # fmt: skip
RWKV7 = TinyRwkv(seed=81)
ARWKV7 = TinyRwkv(
    architecture="arwkv7", seed=82, gated=False,
    metadata={
        "attention.gate_lora_rank": 0, "token_shift_count": 1, "attention.layer_norm_epsilon": None,
        "attention.layer_norm_rms_epsilon": 1e-5,
    },
)  # fmt: skip
