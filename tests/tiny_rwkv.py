"""Tiny random models of RWKV 7 and ARWKV, and what they compute, written in torch from the paper's formulas.

Peng et al., "RWKV-7 Goose", arXiv:2503.14456, section 4. Modules have the names of published checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.tiny import vocabulary
from tests.tiny_decoders import TinyDecoder

HIDDEN, WIDE, DIM, LAYERS = 64, 96, 16, 3
RANKS = {"decay_low_rank_dim": 12, "a_low_rank_dim": 10, "v_low_rank_dim": 6, "gate_low_rank_dim": 14}
NAMES = {
    "attn_norm": "attn_norm", "attn.r_proj": "time_mix_receptance", "attn.k_proj": "time_mix_key",
    "attn.v_proj": "time_mix_value", "attn.o_proj": "time_mix_output", "attn.g_norm": "time_mix_ln",
    "ffn.key": "channel_mix_key", "ffn.value": "channel_mix_value", "ffn.gate_proj": "ffn_gate",
    "ffn.up_proj": "ffn_up", "ffn.down_proj": "ffn_down",
}  # fmt: skip


def before(x: Tensor) -> Tensor:
    """The input before each [T, hidden]; zeros before the first."""
    return F.pad(x, (0, 0, 1, 0))[:-1]


class LowRank(nn.Module):
    def __init__(self, rank: int, activation: nn.Module, *, bias: bool = True) -> None:
        super().__init__()
        inner = nn.Linear(HIDDEN, rank, bias=False), activation, nn.Linear(rank, HIDDEN, bias=bias)
        self.lora = nn.Sequential(*inner)

    def forward(self, x: Tensor) -> Tensor:
        return self.lora(x)


class Mix(nn.Module):
    """The attention; `first` has the values of the first layer after that."""

    def __init__(self, layer: int, *, gated: bool) -> None:
        super().__init__()
        self.inputs = "rwkvag" if gated else "rwkva"
        for name in self.inputs:
            self.register_parameter(f"x_{name}", nn.Parameter(torch.zeros(1, 1, HIDDEN)))
        self.k_k, self.k_a = (nn.Parameter(torch.zeros(HIDDEN)) for _ in range(2))
        self.r_k = nn.Parameter(torch.zeros(HIDDEN // DIM, DIM))
        for name in "rkvo":
            self.add_module(f"{name}_proj", nn.Linear(HIDDEN, HIDDEN, bias=False))
        self.w_lora = LowRank(RANKS["decay_low_rank_dim"], nn.Tanh())
        self.a_lora = LowRank(RANKS["a_low_rank_dim"], nn.Identity())
        if layer:
            self.v_lora = LowRank(RANKS["v_low_rank_dim"], nn.Identity())
        if gated:
            self.g_lora = LowRank(RANKS["gate_low_rank_dim"], nn.Sigmoid(), bias=False)
            self.g_norm = nn.GroupNorm(HIDDEN // DIM, HIDDEN, eps=64e-5)
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
        heads = -1, HIDDEN // DIM, DIM
        removal = F.normalize((k * self.k_k).reshape(heads), dim=-1)
        k = k * (1 + (rate - 1) * self.k_a)
        r, k, v, decay, rate = (each.reshape(heads) for each in (r, k, v, decay, rate))
        state, found = torch.zeros(HIDDEN // DIM, DIM, DIM), []  # [heads, values, keys]
        for t in range(len(x)):
            kept = torch.diag_embed(decay[t]) - removal[t, :, :, None] * (rate[t] * removal[t])[:, None]
            state = state @ kept + v[t, :, :, None] * k[t, :, None]
            found.append((state @ r[t, :, :, None])[..., 0])
        y = torch.stack(found).reshape(-1, HIDDEN)
        if self.gated:
            y = self.g_norm(y)
        y = y + ((r * k * self.r_k).sum(-1, keepdim=True) * v).reshape(-1, HIDDEN)
        return self.o_proj(y * self.g_lora(shifted["g"]) if self.gated else y)


class Feed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x_k = nn.Parameter(torch.zeros(1, 1, HIDDEN))
        self.key, self.value = nn.Linear(HIDDEN, WIDE, bias=False), nn.Linear(WIDE, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.value(torch.relu(self.key(x + (before(x) - x) * self.x_k.reshape(-1))) ** 2)


class GatedFeed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(HIDDEN, WIDE, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(WIDE, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class RWKV7ForCausalLM(nn.Module):
    """With `transformer`, in the layers of one, and without gates: ARWKV."""

    def __init__(self, config: Any, *, transformer: bool) -> None:
        super().__init__()
        self.config = config
        norm = (lambda: nn.RMSNorm(HIDDEN, 1e-5)) if transformer else (lambda: nn.LayerNorm(HIDDEN, 1e-5))
        self.model = nn.Module()
        self.model.embeddings = nn.Embedding(config.vocab_size, HIDDEN)
        self.model.layers = nn.ModuleList()
        for i in range(LAYERS):
            layer = nn.Module()
            if not i and not transformer:
                layer.pre_norm = norm()
            layer.attn_norm, layer.ffn_norm = norm(), norm()
            layer.attn = Mix(i, gated=not transformer)
            layer.ffn = GatedFeed() if transformer else Feed()
            self.model.layers.append(layer)
        self.model.norm = norm()
        self.lm_head = nn.Linear(HIDDEN, config.vocab_size, bias=False)

    def forward(self, tokens: Tensor) -> Any:
        hidden, first = self.model.embeddings(tokens[0]), []
        for layer in self.model.layers:
            hidden = layer.pre_norm(hidden) if hasattr(layer, "pre_norm") else hidden
            hidden = hidden + layer.attn(layer.attn_norm(hidden), first)
            hidden = hidden + layer.ffn(layer.ffn_norm(hidden))
        return SimpleNamespace(logits=self.lm_head(self.model.norm(hidden))[None])


@dataclass(frozen=True)
class TinyRwkv(TinyDecoder):
    names: Mapping[str, str] = field(default_factory=lambda: NAMES | {"ffn_norm": "attn_norm_2"})

    def config(self) -> Any:
        return SimpleNamespace(
            vocab_size=len(vocabulary()), hidden_size=HIDDEN, intermediate_size=WIDE, head_dim=DIM,
            norm_eps=1e-5, num_hidden_layers=LAYERS, max_position_embeddings=256, tie_word_embeddings=False,
            **RANKS,
        )  # fmt: skip

    def untrained(self) -> Any:
        return RWKV7ForCausalLM(self.config(), transformer=self.architecture == "arwkv7")

    def build(self) -> Any:
        model = super().build()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".x_" in name:
                    parameter.copy_(torch.rand_like(parameter))
        return model

    def named(self, tensors: Mapping[str, Tensor], config: Any) -> dict[str, np.ndarray]:
        own: dict[str, np.ndarray] = {}
        others: dict[str, Tensor] = {}
        shifts: dict[str, list[np.ndarray]] = {}
        for name, tensor in tensors.items():
            match name.split("."):
                case ["model", "embeddings", "weight"]:
                    others["model.embed_tokens.weight"] = tensor
                case ["model", "layers", "0", "pre_norm", kind]:
                    own[f"token_embd_norm.{kind}"] = tensor.numpy()
                case ["model", "layers", layer, "attn", shift] if shift.startswith("x_"):
                    shifts.setdefault(f"blk.{layer}.time_mix_lerp_fused.weight", []).append(tensor.numpy())
                case ["model", "layers", layer, "ffn", "x_k"]:
                    own[f"blk.{layer}.channel_mix_lerp_k.weight"] = tensor.numpy().reshape(-1)
                case ["model", "layers", layer, "attn", "k_k" | "k_a" | "r_k" as kind]:
                    own[f"blk.{layer}.time_mix_{kind}.weight"] = tensor.numpy().reshape(-1)
                case ["model", "layers", layer, "attn", low_rank, "lora", place, kind]:
                    number = 0 if kind == "bias" else {"0": 1, "2": 2}[place]
                    own[f"blk.{layer}.time_mix_{low_rank[0]}{number}.weight"] = tensor.numpy()
                case _:
                    others[name] = tensor
        for number in range(3):  # what files have there is not used
            own[f"blk.0.time_mix_v{number}.weight"] = own[f"blk.0.time_mix_a{number}.weight"]
        fused = {name: np.stack(parts) for name, parts in shifts.items()}
        return super().named(others, config) | own | fused


KEYS = {
    "wkv.head_size": DIM, "attention.head_count": 0, "attention.key_length": None,
    "attention.value_length": None, "attention.decay_lora_rank": RANKS["decay_low_rank_dim"],
    "attention.iclr_lora_rank": RANKS["a_low_rank_dim"],
    "attention.value_residual_mix_lora_rank": RANKS["v_low_rank_dim"],
    "attention.gate_lora_rank": RANKS["gate_low_rank_dim"],
}  # fmt: skip
RWKV7 = TinyRwkv("rwkv7", "rwkv7", metadata={**KEYS, "attention.layer_norm_epsilon": 1e-5}, seed=81)
ARWKV7 = TinyRwkv(
    "arwkv7", "arwkv7", names=NAMES | {"ffn_norm": "ffn_norm"}, seed=82,
    metadata={
        **KEYS, "attention.gate_lora_rank": 0, "token_shift_count": 1,
        "attention.layer_norm_rms_epsilon": 1e-5,
    },
)  # fmt: skip
