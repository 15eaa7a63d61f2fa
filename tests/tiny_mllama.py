"""Tiny random models with cross-attention to images, as GGUF files and as their Hugging Face originals."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from puna.gguf import GGUFWriter, ValueType
from tests.tiny import TinyLlama, add_tokenizer, llama3_factors, permute, vocabulary

#: The token an image stands at: the first that is no text, of which there are no logits.
IMAGE = len(vocabulary())


@dataclass
class TinyMllama(TinyLlama):
    """Sizes of a tiny language model with cross-attention."""

    layers: int = 4
    cross_layers: tuple[int, ...] = (1, 3)

    def build(self) -> Any:
        """The model as transformers runs it, float32, random weights."""
        from transformers import MllamaForCausalLM
        from transformers.models.mllama.configuration_mllama import MllamaTextConfig

        torch.manual_seed(self.seed)
        config = MllamaTextConfig(
            vocab_size=len(vocabulary()),
            hidden_size=self.hidden,
            intermediate_size=self.feed_forward,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            max_position_embeddings=self.context,
            rms_norm_eps=1e-5,
            rope_parameters={
                "rope_theta": self.rope_base,
                **(self.rope_scaling or {"rope_type": "default"}),
            },
            cross_attention_layers=list(self.cross_layers),
            pad_token_id=None,
        )
        model: Any = MllamaForCausalLM(config).float().eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    parameter.copy_(1 + 0.1 * torch.randn_like(parameter))
                elif name.endswith("_gate"):
                    parameter.copy_(0.5 + torch.rand_like(parameter))  # far from zero, where they begin
                else:
                    parameter.copy_(self.scale * torch.randn_like(parameter) / parameter.shape[-1] ** 0.5 * 2)
        return model


def tiny_mllama_gguf(path: Path, config: TinyMllama, *, model: Any = None) -> Path:
    """Write a tiny model to `path` and return the path. An image has up to 10 vision states."""
    model = model or config.build()
    writer = GGUFWriter(path, "mllama")
    writer.add("general.name", "Tiny Mllama")
    writer.add("mllama.block_count", config.layers)
    writer.add("mllama.context_length", config.context)
    writer.add("mllama.embedding_length", config.hidden)
    writer.add("mllama.feed_forward_length", config.feed_forward)
    writer.add("mllama.attention.head_count", config.heads)
    writer.add("mllama.attention.head_count_kv", config.kv_heads)
    writer.add("mllama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add("mllama.attention.cross_attention_layers", config.cross_layers, ValueType.INT32)
    writer.add("mllama.rope.dimension_count", config.hidden // config.heads)
    writer.add("mllama.rope.freq_base", config.rope_base)
    writer.add("mllama.vision.image_size", 28)
    writer.add("mllama.vision.patch_size", 14)
    writer.add("mllama.vision.max_num_tiles", 2)
    add_tokenizer(writer, markers=["<|image|>"])
    for name, array in mllama_tensors(model, config).items():
        writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write()
    return path


def mllama_tensors(model: Any, config: TinyMllama) -> dict[str, np.ndarray]:
    """Tensors of `model` under their GGUF names; those that rotate are permuted for neighbouring pairs."""
    state = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    tensors = {
        "token_embd.weight": state["model.embed_tokens.weight"],
        "output_norm.weight": state["model.norm.weight"],
        "output.weight": state["lm_head.weight"],
    }
    both = {
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
        **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
    }  # fmt: skip
    text = {f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"}
    text["self_attn.o_proj"] = "attn_output"
    cross = {f"cross_attn.{part}_proj": f"cross_attn_{part}_proj" for part in "qkvo"}
    cross |= {f"cross_attn.{part}_norm": f"cross_attn_{part}_norm" for part in "qk"}
    for i in range(config.layers):
        names = both | (cross if i in config.cross_layers else text)
        for theirs, ours in names.items():
            array = state[f"model.layers.{i}.{theirs}.weight"]
            if ours in ("attn_q", "attn_k"):
                array = permute(array, config.heads if ours == "attn_q" else config.kv_heads)
            tensors[f"blk.{i}.{ours}.weight"] = array
        if i in config.cross_layers:
            for gate in ("cross_attn_attn_gate", "cross_attn_mlp_gate"):
                tensors[f"blk.{i}.{gate}"] = state[f"model.layers.{i}.{gate}"]
    if config.rope_scaling and config.rope_scaling["rope_type"] == "llama3":
        tensors["rope_freqs.weight"] = llama3_factors(config)
    return tensors
