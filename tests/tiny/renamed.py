"""Models that transformers lacks, but whose network it has under another name.

The reference is that network, and the checkpoint has the names and the layout that the model is published
with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from tests.tiny.decoders import SIZES, TinyDecoder

State = dict[str, torch.Tensor]


class Published:
    """A model as it is published; it computes what `inner`, transformers' model, does."""

    def __init__(self, inner: Any, settings: Mapping[str, Any], state: State) -> None:
        self.inner = inner
        self.config = SimpleNamespace(**settings)
        self._state = {name: values.contiguous().clone() for name, values in state.items()}

    def state_dict(self) -> State:
        return self._state

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)


@dataclass(frozen=True)
class TinyRenamed(TinyDecoder):
    """Network `hf` of transformers, published as the architecture `name`."""

    hf: str = ""
    name: str = ""
    #: Settings by their published names, given transformers' config.
    published: Callable[[Any], dict[str, Any]] = lambda config: {}
    names: Mapping[str, str] = field(default_factory=dict)  # regular expressions of tensors' names
    layout: Callable[[State, Any], State] = lambda state, config: state

    def build(self) -> Any:
        inner = super().build()
        found: State = {}
        for name, values in inner.state_dict().items():
            for theirs, ours in self.names.items():
                name = re.sub(theirs, ours, name)
            found[name] = values
        kind = type(self.name, (Published,), {})
        return kind(inner, self.published(inner.config), self.layout(found, inner.config))


def grouped(state: State, config: Any, part: str, joined: str) -> State:
    """Join `part`, with `{}` for q, k and v, to `joined`, ordered by groups of heads."""
    found = dict(state)
    for name in [name for name in state if part.format("q") in name]:
        query, key, value = (found.pop(name.replace(part.format("q"), part.format(each))) for each in "qkv")
        groups = config.num_key_value_heads
        rows = [each.reshape(groups, -1, *each.shape[1:]) for each in (query, key, value)]
        found[name.replace(part.format("q"), joined)] = torch.cat(rows, dim=1).reshape(-1, *query.shape[1:])
    return found


def stacked(state: State, part: str, joined: str) -> State:
    """Join `part`, with `{}` for q, k and v, to `joined`: all queries, all keys, all values."""
    found = dict(state)
    for name in [name for name in state if part.format("q") in name]:
        parts = [found.pop(name.replace(part.format("q"), part.format(each))) for each in "qkv"]
        found[name.replace(part.format("q"), joined)] = torch.cat(parts)
    return found


def separate_experts(state: State, config: Any) -> State:
    """Give every expert tensors of its own."""
    found: State = {}
    for name, values in state.items():
        if not name.endswith(("mlp.experts.gate_up_proj", "mlp.experts.down_proj")):
            found[name] = values
            continue
        prefix, _, kind = name.rpartition(".")
        parts = {"down_proj": values}
        if kind == "gate_up_proj":
            parts = dict(zip(("gate_proj", "up_proj"), values.chunk(2, dim=1), strict=True))
        for part, stack in parts.items():
            for number, expert in enumerate(stack):
                found[f"{prefix}.{number}.{part}.weight"] = expert
    return found


def settings_of(config: Any, *more: str) -> dict[str, Any]:
    """Return a config's usual settings, and `more` of them."""
    usual = (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "max_position_embeddings", "hidden_act", "tie_word_embeddings",
    )  # fmt: skip
    found = {name: getattr(config, name) for name in (*usual, *more)}
    return found | {"rope_theta": config.rope_parameters["rope_theta"]}


_ROTATION = {"rope_type": "default", "rope_theta": 500.0}
_INTERNLM2_NAMES = {
    r"self_attn\.([qkvo])_proj": r"attention.w\1", "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2", "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm", "embed_tokens": "tok_embeddings", "lm_head": "output",
}  # fmt: skip
INTERNLM2 = TinyRenamed(
    "llama", {"attention_bias": True, "rope_parameters": _ROTATION}, name="InternLM2ForCausalLM",
    published=lambda config: settings_of(config, "rms_norm_eps") | {"bias": True}, names=_INTERNLM2_NAMES,
    layout=lambda state, config: grouped(state, config, "attention.w{}.", "attention.wqkv."), seed=120,
)  # fmt: skip
XVERSE = TinyRenamed(
    "llama", {"num_key_value_heads": 4, "rope_parameters": _ROTATION}, name="XverseForCausalLM",
    published=lambda config: settings_of(config, "rms_norm_eps"), seed=121,
)  # fmt: skip


def _of_exaone(config: Any) -> dict[str, Any]:
    found, rotation = settings_of(config), dict(config.rope_parameters)
    rotation.pop("rope_theta")
    return found | {
        "num_layers": found.pop("num_hidden_layers"), "activation_function": found.pop("hidden_act"),
        "layer_norm_epsilon": config.rms_norm_eps, "rope_scaling": rotation,
    }  # fmt: skip


_GPT_NAMES = {
    r"model\.layers": "transformer.h", r"model\.embed_tokens": "transformer.wte",
    r"model\.norm": "transformer.ln_f", "input_layernorm": "ln_1", "post_attention_layernorm": "ln_2",
}  # fmt: skip
EXAONE = TinyRenamed(
    "llama",
    {"tie_word_embeddings": True, "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 32}},
    name="ExaoneForCausalLM", published=_of_exaone,
    names={
        **_GPT_NAMES, r"self_attn\.([qkv])_proj": r"attn.attention.\1_proj",
        "self_attn.o_proj": "attn.attention.out_proj", "mlp.gate_proj": "mlp.c_fc_0",
        "mlp.up_proj": "mlp.c_fc_1", "mlp.down_proj": "mlp.c_proj",
    },
    seed=122,
)  # fmt: skip
ORION = TinyRenamed(
    "stablelm", {"rope_parameters": {**_ROTATION, "partial_rotary_factor": 1.0}}, name="OrionForCausalLM",
    published=lambda config: settings_of(config) | {"rms_norm_eps": config.layer_norm_eps}, seed=123,
)  # fmt: skip


def _of_codeshell(config: Any) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size, "n_embd": config.hidden_size, "n_layer": config.num_hidden_layers,
        "n_head": config.num_attention_heads, "n_inner": config.intermediate_size,
        "n_positions": config.max_position_embeddings, "num_query_groups": config.num_key_value_heads,
        "layer_norm_epsilon": config.norm_epsilon, "activation_function": config.hidden_act,
        "group_query_attention": True, "position_embedding_type": "rope", "scale_attn_weights": True,
        "tie_word_embeddings": config.tie_word_embeddings,
    }  # fmt: skip


CODESHELL = TinyRenamed(
    "starcoder2", {"sliding_window": None, "use_bias": True, "tie_word_embeddings": False,
                   "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    name="CodeShellForCausalLM", published=_of_codeshell,
    names={
        **_GPT_NAMES, r"self_attn\.([qkv])_proj": r"attn.c_\1", "self_attn.o_proj": "attn.c_proj",
    },
    layout=lambda state, config: stacked(state, "attn.c_{}.", "attn.c_attn."), seed=124,
)  # fmt: skip
MINICPM = TinyRenamed(
    "granite",
    {"embedding_multiplier": 6.0, "residual_multiplier": 0.9 / 2**0.5, "logits_scaling": 64 / 40,
     "attention_multiplier": 0.25, "rope_parameters": _ROTATION},
    name="MiniCPMForCausalLM",
    published=lambda config: settings_of(config, "rms_norm_eps") | {
        "scale_emb": 6, "scale_depth": 0.9, "dim_model_base": 40,
    },
    seed=125,
)  # fmt: skip


class _WithHead(torch.nn.Module):
    """DeepSeek-OCR 2's text model, which is DeepSeekMoE, with an output."""

    def __init__(self, config: Any, text: Any) -> None:
        super().__init__()
        self.config = config
        self.model = text
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, tokens: torch.Tensor) -> Any:
        return SimpleNamespace(logits=self.lm_head(self.model(input_ids=tokens).last_hidden_state))


@dataclass(frozen=True)
class TinyDeepSeek(TinyRenamed):
    """Two shared experts beside the routed ones, in all layers but the first."""

    def untrained(self) -> Any:
        from transformers.models.deepseek_ocr2 import configuration_deepseek_ocr2 as configs
        from transformers.models.deepseek_ocr2 import modeling_deepseek_ocr2 as models

        config = configs.DeepseekOcr2TextConfig(**{**SIZES, **self.settings})
        return _WithHead(config, models.DeepseekOcr2TextModel._from_config(config))


DEEPSEEK = TinyDeepSeek(
    settings={
        "num_hidden_layers": 3, "n_routed_experts": 6, "n_shared_experts": 2, "num_experts_per_tok": 3,
        "moe_intermediate_size": 32, "mlp_layer_types": ["dense", "sparse", "sparse"],
        "tie_word_embeddings": False, "rope_parameters": _ROTATION,
    },
    name="DeepseekForCausalLM",
    published=lambda config: settings_of(
        config, "rms_norm_eps", "n_routed_experts", "n_shared_experts", "num_experts_per_tok",
        "moe_intermediate_size",
    ) | {
        "first_k_dense_replace": 1, "moe_layer_freq": 1, "norm_topk_prob": False, "scoring_func": "softmax",
    },
    layout=separate_experts, seed=126,
)  # fmt: skip


def _of_baichuan(config: Any) -> dict[str, Any]:
    found = settings_of(config, "rms_norm_eps")
    return {name: value for name, value in found.items() if name not in ("num_key_value_heads", "rope_theta")}


#: The 7B model, which has 32 layers.
BAICHUAN = TinyRenamed(
    "llama",
    {"num_hidden_layers": 32, "hidden_size": 48, "intermediate_size": 40, "num_attention_heads": 3,
     "num_key_value_heads": 3, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    name="BaiChuanForCausalLM", published=_of_baichuan,
    layout=lambda state, config: stacked(state, "self_attn.{}_proj.", "self_attn.W_pack."), seed=132,
)  # fmt: skip


def _of_openelm(config: Any) -> dict[str, Any]:
    layers, share = config.num_hidden_layers, config.intermediate_size / config.hidden_size
    return {
        "vocab_size": config.vocab_size, "model_dim": config.hidden_size, "head_dim": config.head_dim,
        "num_transformer_layers": layers, "num_query_heads": [config.num_attention_heads] * layers,
        "num_kv_heads": [config.num_key_value_heads] * layers, "ffn_multipliers": [share] * layers,
        "ffn_dim_divisor": 32, "rope_freq_constant": config.rope_parameters["rope_theta"],
        "max_context_length": config.max_position_embeddings, "normalize_qk_projections": True,
        "share_input_output_layers": True,
    }  # fmt: skip


def _as_openelm(state: State, config: Any) -> State:
    """Join queries, keys and values, and gate and up; leave out the output, which is the input's table."""
    found = stacked(state, "attn.{}_proj.", "attn.qkv_proj.")
    found.pop("lm_head.weight", None)
    for name in [name for name in found if "mlp.gate_proj" in name]:
        gate, up = found.pop(name), found.pop(name.replace("gate_proj", "up_proj"))
        found[name.replace("mlp.gate_proj", "ffn.proj_1")] = torch.cat([gate, up])
    return found


#: All layers are alike; those of `tests.tiny.remote_code` are not.
OPENELM = TinyRenamed(
    "qwen3",
    {"head_dim": 24, "tie_word_embeddings": True, "rms_norm_eps": 1e-6, "rope_parameters": _ROTATION},
    name="OpenELMForCausalLM", published=_of_openelm,
    names={
        r"model\.layers": "transformer.layers", r"model\.embed_tokens": "transformer.token_embeddings",
        r"model\.norm": "transformer.norm", "self_attn.o_proj": "attn.out_proj", "self_attn": "attn",
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.down_proj": "ffn.proj_2",
    },
    layout=_as_openelm, seed=133,
)  # fmt: skip
