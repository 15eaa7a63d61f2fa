"""Tiny random encoders of other architectures than BERT, as GGUF files and as their references."""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from tests.tiny_bert import VOCABULARY, randomised, write_encoder

SIZES: dict[str, Any] = {
    "vocab_size": len(VOCABULARY), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "max_position_embeddings": 128, "pad_token_id": 0,
}  # fmt: skip

#: Of the references' modules, by patterns. Those that match nothing keep their names, and fail to load.
_GLOBAL = {
    r"embeddings\.(word|tok)_embeddings": "token_embd", r"embeddings\.token_type_embeddings": "token_types",
    r"embeddings\.(LayerNorm|norm)": "token_embd_norm", r"final_norm": "output_norm",
}  # fmt: skip
_LAYER = {
    r"(self_attn|attn)\.(qkv|Wqkv)": "attn_qkv", r"(self_attn\.o_proj|attn\.Wo)": "attn_output",
    r"post_attention_layernorm": "attn_output_norm", r"post_mlp_layernorm": "layer_output_norm",
    r"attn_norm": "attn_norm", r"mlp_norm": "ffn_norm",
    r"mlp\.gate_proj": "ffn_gate", r"mlp\.(up_proj|fc1|Wi)": "ffn_up", r"mlp\.(down_proj|fc2|Wo)": "ffn_down",
    r"mlp\.router": "ffn_gate_inp", r"mlp\.up_experts": "ffn_up_exps", r"mlp\.down_experts": "ffn_down_exps",
}  # fmt: skip


@dataclass(frozen=True)
class TinyEncoder:
    """Sizes of a tiny encoder, and what its file says."""

    architecture: ClassVar[str]
    pooling_type: int = 1
    seed: int = 0

    @abstractmethod
    def build(self) -> Any:
        """The reference, float32, random weights: called with tokens, it has a `last_hidden_state`."""

    def metadata(self) -> dict[str, Any]:
        return {
            "block_count": SIZES["num_hidden_layers"],
            "context_length": SIZES["max_position_embeddings"],
            "embedding_length": SIZES["hidden_size"],
            "feed_forward_length": SIZES["intermediate_size"],
            "attention.head_count": SIZES["num_attention_heads"],
            "attention.layer_norm_epsilon": 1e-12,
            "attention.causal": False,
            "pooling_type": self.pooling_type,
        }


@dataclass(frozen=True)
class TinyNomicBert(TinyEncoder):
    architecture = "nomic-bert"

    def build(self) -> Any:
        from transformers import NomicBertConfig, NomicBertModel

        torch.manual_seed(self.seed)
        return randomised(NomicBertModel(NomicBertConfig(**SIZES)).float().eval())


@dataclass(frozen=True)
class TinyJinaBertV3(TinyEncoder):
    architecture = "jina-bert-v3"
    vocabulary: int = SIZES["vocab_size"]

    def build(self) -> Any:
        from transformers import JinaEmbeddingsV3Config, JinaEmbeddingsV3Model

        torch.manual_seed(self.seed)
        sizes = SIZES | {"vocab_size": self.vocabulary}
        config = JinaEmbeddingsV3Config(**sizes, layer_norm_eps=1e-12)
        return randomised(JinaEmbeddingsV3Model(config, add_pooling_layer=False).float().eval())


@dataclass(frozen=True)
class TinyModernBert(TinyEncoder):
    """With a window shorter than the longest texts."""

    architecture = "modern-bert"
    activation: str = "gelu"
    window: int = 12
    vocabulary: int = SIZES["vocab_size"]

    def build(self) -> Any:
        from transformers import ModernBertConfig, ModernBertModel

        torch.manual_seed(self.seed)
        sizes = SIZES | {"vocab_size": self.vocabulary}
        config = ModernBertConfig(
            **sizes, local_attention=self.window, hidden_activation=self.activation, norm_eps=1e-12
        )
        return randomised(ModernBertModel(config).float().eval())

    def metadata(self) -> dict[str, Any]:
        return super().metadata() | {
            "attention.sliding_window": self.window,
            "attention.sliding_window_pattern": 3,
            "hidden_activation": self.activation,
            "rope.scaling.type": "none",
        }


class NomicExperts(torch.nn.Module):
    """The feed-forward half of a layer of Nomic Embed 2, which transformers does not have."""

    def __init__(self, hidden: int, width: int, experts: int, used: int) -> None:
        super().__init__()
        self.used = used
        self.router = torch.nn.Linear(hidden, experts, bias=False)
        self.up_experts = torch.nn.Linear(hidden, width * experts, bias=False)
        self.down_experts = torch.nn.Linear(width, hidden * experts, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = self.router(x).softmax(-1)
        best, chosen = shares.topk(self.used, dim=-1)
        experts = self.router.out_features
        up = self.up_experts.weight.reshape(experts, -1, x.shape[-1])
        down = self.down_experts.weight.reshape(experts, x.shape[-1], -1)
        every = torch.stack(
            [torch.nn.functional.gelu(x @ up[i].T) @ down[i].T for i in range(experts)], dim=-2
        )  # [..., experts, hidden]
        picked = every.gather(-2, chosen[..., None].expand(*chosen.shape, x.shape[-1]))
        return (picked * best[..., None]).sum(-2)


@dataclass(frozen=True)
class TinyNomicBertMoe(TinyEncoder):
    """XLM-RoBERTa with rotation, as Jina's is, and experts in the second layer."""

    architecture = "nomic-bert-moe"
    experts: int = 8
    used: int = 2

    def build(self) -> Any:
        from transformers import JinaEmbeddingsV3Config, JinaEmbeddingsV3Model

        torch.manual_seed(self.seed)
        rope = {"rope_type": "default", "rope_theta": 10000.0}
        config = JinaEmbeddingsV3Config(**SIZES, layer_norm_eps=1e-12, rope_parameters=rope)
        model = JinaEmbeddingsV3Model(config, add_pooling_layer=False).float().eval()
        sizes = SIZES["hidden_size"], SIZES["intermediate_size"]
        model.layers[1].mlp = NomicExperts(*sizes, self.experts, self.used)
        return randomised(model)

    def metadata(self) -> dict[str, Any]:
        return super().metadata() | {
            "moe_every_n_layers": 2, "expert_count": self.experts, "expert_used_count": self.used,
        }  # fmt: skip


def tiny_encoder_gguf(
    path: Path, config: TinyEncoder, *, model: Any = None, metadata: dict[str, Any] | None = None
) -> Path:
    """Write a tiny encoder to `path` and return that. `metadata` (without a prefix) replaces; None drops."""
    model = model or config.build()
    keys = config.metadata() | (metadata or {})
    return write_encoder(path, config.architecture, keys, encoder_tensors(model))


def encoder_tensors(model: Any) -> dict[str, np.ndarray]:
    """Tensors of `model` under their GGUF names; files have queries, keys and values in one."""
    found: dict[str, np.ndarray] = {}
    for name, array in _fused({key: value.detach().numpy() for key, value in model.state_dict().items()}):
        module, kind = name.rsplit(".", 1)
        if layer := re.fullmatch(r"layers\.(\d+)\.(.*)", module):
            tensor = _named(layer[2], _LAYER)
            if tensor.endswith("_exps"):
                inner = SIZES["hidden_size" if tensor == "ffn_down_exps" else "intermediate_size"]
                array = array.reshape(-1, inner, array.shape[1])
            found[f"blk.{layer[1]}.{tensor}.{kind}"] = array
        else:
            found[f"{_named(module, _GLOBAL)}.{kind}"] = array
    return found


def _fused(state: dict[str, np.ndarray]) -> list[tuple[str, np.ndarray]]:
    found = []
    for name, array in state.items():
        if "q_proj" in name:
            parts = [state[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            found.append((name.replace("q_proj", "qkv"), np.concatenate(parts)))
        elif "k_proj" not in name and "v_proj" not in name:
            found.append((name, array))
    return found


def _named(module: str, names: dict[str, str]) -> str:
    return next((name for pattern, name in names.items() if re.fullmatch(pattern, module)), module)
