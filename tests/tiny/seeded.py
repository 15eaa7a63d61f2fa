"""Random checkpoints of models whose code transformers lacks, and their names and settings as published.

What they compute is compared with llama.cpp: `tests/parity/write_expected.py` writes its results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import torch

from tests.tiny.converted import Contents, converted
from tests.tiny.llama import vocabulary

VOCABULARY: Final = len(vocabulary())


class Checkpoint:
    """A checkpoint to save; the name of its class is the model's in config.json."""

    def __init__(self, settings: Mapping[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        self.config = SimpleNamespace(**settings)
        self._tensors = tensors

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self._tensors


@dataclass(frozen=True)
class Seeded:
    """A model named `name` with `shapes` of tensors, whose values follow from `seed`."""

    name: str
    settings: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    seed: int
    #: What norms are stored relative to, by the ends of their names.
    offsets: Mapping[str, float] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)  # keys that the file changes

    def contents(self) -> Contents:
        """Return the contents of the model's file."""
        found = converted(self.build())
        found.set(self.metadata)
        return found

    def build(self) -> Any:
        dice = np.random.default_rng(self.seed)
        found = {}
        for name, shape in self.shapes.items():
            values = dice.standard_normal(shape)
            if (
                offset := next((o for end, o in self.offsets.items() if name.endswith(end)), None)
            ) is not None:
                values = 1 - offset + 0.2 * values
            elif name.endswith(_SHARES):
                values = dice.random(shape)
            elif name.endswith(_TURNED):
                values = values / shape[-2] ** 0.5
            elif len(shape) > 1:
                values = values / np.prod(shape[1:]) ** 0.5
            else:
                values = 0.3 * values
            found[name] = torch.from_numpy(values.astype(np.float32))
        return type(self.name, (Checkpoint,), {})(self.settings, found)


#: Ends of names of shares of the previous token, and of matrices that are stored [in, out].
_SHARES: Final = tuple(f"time_maa_{name}" for name in "xwkvrg")
_TURNED: Final = ("time_maa_w1", "time_maa_w2", "time_decay_w1", "time_decay_w2")


def _common(hidden: int, *, tied: bool, embedding: str = "model.embed_tokens.weight") -> dict[str, Any]:
    output = {} if tied else {"lm_head.weight": (VOCABULARY, hidden)}
    return {embedding: (VOCABULARY, hidden), "model.norm.weight": (hidden,), **output}


def _small_thinker(layers: int, *, tied: bool, **settings: Any) -> Seeded:
    hidden, dim, heads, kv_heads, experts, wide = 48, 16, 6, 2, 7, 40
    shapes = _common(hidden, tied=tied)
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (hidden,),
            f"{prefix}.post_attention_layernorm.weight": (hidden,),
            f"{prefix}.self_attn.q_proj.weight": (heads * dim, hidden),
            f"{prefix}.self_attn.k_proj.weight": (kv_heads * dim, hidden),
            f"{prefix}.self_attn.v_proj.weight": (kv_heads * dim, hidden),
            f"{prefix}.self_attn.o_proj.weight": (hidden, heads * dim),
            f"{prefix}.block_sparse_moe.primary_router.weight": (experts, hidden),
        }
        for expert in range(experts):
            inner = f"{prefix}.block_sparse_moe.experts.{expert}"
            shapes |= {
                f"{inner}.gate.weight": (wide, hidden), f"{inner}.up.weight": (wide, hidden),
                f"{inner}.down.weight": (hidden, wide),
            }  # fmt: skip
    usual = {
        "vocab_size": VOCABULARY, "hidden_size": hidden, "num_hidden_layers": layers, "head_dim": dim,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5, "rope_theta": 500.0, "moe_num_primary_experts": experts,
        "moe_num_active_primary_experts": 3, "moe_ffn_hidden_size": wide, "tie_word_embeddings": tied,
        "norm_topk_prob": True, "rope_layout": [1] * layers, "sliding_window_layout": [0] * layers,
    }  # fmt: skip
    return Seeded("SmallThinkerForCausalLM", usual | settings, shapes, 201 + layers, {"norm.weight": 0.0})


def _plamo_layer(prefix: str, hidden: int, wide: int) -> dict[str, tuple[int, ...]]:
    norms = ("pre_mixer_norm", "post_mixer_norm", "pre_mlp_norm", "post_mlp_norm")
    return {
        **{f"{prefix}.{norm}.weight": (hidden,) for norm in norms},
        f"{prefix}.mlp.gate_up_proj.weight": (2 * wide, hidden),
        f"{prefix}.mlp.down_proj.weight": (hidden, wide),
    }


_PLAMO_OFFSETS: Final = {
    "q_norm.weight": 1.0, "k_norm.weight": 1.0, "post_mixer_norm.weight": 1 / 5,
    "post_mlp_norm.weight": 1 / 5**1.5, "norm.weight": 1.0,
}  # fmt: skip


def _plamo3(layers: int, pattern: int, window: int, *, tied: bool) -> Seeded:
    hidden, dim, heads, kv_heads, wide = 48, 20, 6, 3, 56
    shapes = _common(hidden, tied=tied)
    for layer in range(layers):
        prefix = f"model.layers.layers.{layer}"
        shapes |= _plamo_layer(prefix, hidden, wide) | {
            f"{prefix}.mixer.qkv_proj.weight": ((heads + 2 * kv_heads) * dim, hidden),
            f"{prefix}.mixer.o_proj.weight": (hidden, heads * dim),
            f"{prefix}.mixer.q_norm.weight": (dim,), f"{prefix}.mixer.k_norm.weight": (dim,),
        }  # fmt: skip
    settings = {
        "vocab_size": VOCABULARY, "hidden_size": hidden, "num_hidden_layers": layers, "head_dim": dim,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "max_position_embeddings": 256,
        "window_size": window, "sliding_window_pattern": pattern, "rope_theta": 5000.0,
        "rope_local_theta": 300.0, "intermediate_size": wide, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": tied, "rope_scaling_factor": 1,
    }  # fmt: skip
    return Seeded("Plamo3ForCausalLM", settings, shapes, 240 + layers, _PLAMO_OFFSETS)


def _time_mix(prefix: str, hidden: int, mix_rank: int, decay_rank: int) -> dict[str, tuple[int, ...]]:
    return {
        **{f"{prefix}.time_maa_{name}": (1, 1, hidden) for name in "xwkvrg"},
        f"{prefix}.time_maa_w1": (hidden, 5 * mix_rank), f"{prefix}.time_maa_w2": (5, mix_rank, hidden),
        f"{prefix}.time_decay": (1, 1, hidden), f"{prefix}.time_decay_w1": (hidden, decay_rank),
        f"{prefix}.time_decay_w2": (decay_rank, hidden),
    }  # fmt: skip


def _rwkv6(layers: int, dim: int) -> Seeded:
    hidden, wide = 64, 96
    shapes: dict[str, tuple[int, ...]] = {
        "rwkv.embeddings.weight": (VOCABULARY, hidden), "head.weight": (VOCABULARY, hidden),
    }  # fmt: skip
    norms = ["rwkv.blocks.0.pre_ln", "rwkv.ln_out"]
    for layer in range(layers):
        prefix = f"rwkv.blocks.{layer}"
        norms += [f"{prefix}.ln1", f"{prefix}.ln2", f"{prefix}.attention.ln_x"]
        shapes |= _time_mix(f"{prefix}.attention", hidden, 32, 64)
        shapes[f"{prefix}.attention.time_faaaa"] = (hidden // dim, dim)
        for name in ("receptance", "key", "value", "gate", "output"):
            shapes[f"{prefix}.attention.{name}.weight"] = (hidden, hidden)
        shapes |= {
            f"{prefix}.feed_forward.time_maa_k": (1, 1, hidden),
            f"{prefix}.feed_forward.time_maa_r": (1, 1, hidden),
            f"{prefix}.feed_forward.key.weight": (wide, hidden),
            f"{prefix}.feed_forward.receptance.weight": (hidden, hidden),
            f"{prefix}.feed_forward.value.weight": (hidden, wide),
        }
    for norm in norms:
        shapes |= {f"{norm}.weight": (hidden,), f"{norm}.bias": (hidden,)}
    settings = {
        "vocab_size": VOCABULARY, "hidden_size": hidden, "attention_hidden_size": hidden,
        "num_hidden_layers": layers, "head_size": dim, "head_size_divisor": 8, "intermediate_size": wide,
        "layer_norm_epsilon": 1e-5, "rescale_every": 6, "num_attention_heads": hidden // dim,
        "tie_word_embeddings": False,
    }  # fmt: skip
    ends = ("pre_ln.weight", "ln_out.weight", "ln1.weight", "ln2.weight", "ln_x.weight")
    return Seeded("Rwkv6ForCausalLM", settings, shapes, 260 + dim, dict.fromkeys(ends, 0.0))


def _qrwkv6(layers: int, heads: int, kv_heads: int, *, biased: bool, **ranks: int) -> Seeded:
    hidden, wide = 64, 96
    dim, shapes = hidden // heads, _common(hidden, tied=False)
    mix_rank, decay_rank = ranks.get("lora_rank_tokenshift", 32), ranks.get("lora_rank_decay", 64)
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        shapes |= _time_mix(f"{prefix}.self_attn", hidden, mix_rank, decay_rank)
        rows = {"q_proj": hidden, "k_proj": kv_heads * dim, "v_proj": kv_heads * dim}
        for name, count in (rows | {"gate": hidden, "o_proj": hidden}).items():
            shapes[f"{prefix}.self_attn.{name}.weight"] = (count, hidden)
            if biased and name in rows:
                shapes[f"{prefix}.self_attn.{name}.bias"] = (count,)
        shapes |= {
            f"{prefix}.input_layernorm.weight": (hidden,),
            f"{prefix}.post_attention_layernorm.weight": (hidden,),
            f"{prefix}.mlp.gate_proj.weight": (wide, hidden), f"{prefix}.mlp.up_proj.weight": (wide, hidden),
            f"{prefix}.mlp.down_proj.weight": (hidden, wide),
        }  # fmt: skip
    settings = {
        "vocab_size": VOCABULARY, "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": wide,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "hidden_act": "silu", **ranks,
    }  # fmt: skip
    return Seeded("RWKV6Qwen2ForCausalLM", settings, shapes, 280 + heads, {"norm.weight": 0.0})


_EVERY_FOURTH: Final = [0, 1, 1, 1, 0, 1]
#: By the names of their files of expected values, which begin with the architecture.
SEEDED: Final[dict[str, Seeded]] = {
    "smallthinker": _small_thinker(3, tied=True),
    "smallthinker-windows": _small_thinker(
        6, tied=False, rope_layout=_EVERY_FOURTH, sliding_window_layout=_EVERY_FOURTH,
        moe_primary_router_apply_softmax=True, sliding_window_size=4096,
    ),
    "plamo3": _plamo3(5, 3, 6, tied=True),
    "plamo3-untied": _plamo3(4, 2, 9, tied=False),
    "rwkv6": _rwkv6(3, 16),
    "rwkv6-wide": _rwkv6(2, 32),
    "rwkv6-halved": replace(_rwkv6(2, 32), metadata={"rescale_every_n_layers": 1}, seed=299),
    "rwkv6qwen2": _qrwkv6(3, 4, 2, biased=True),
    "rwkv6qwen2-equal": _qrwkv6(2, 2, 2, biased=False, lora_rank_tokenshift=12, lora_rank_decay=20),
}  # fmt: skip
