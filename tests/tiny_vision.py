"""Tiny random models that see, as GGUF files and as their Hugging Face originals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from puna.gguf import GGUFWriter
from tests.tiny import CHATML, TinyLlama, add_tokenizer, llama_tensors, vocabulary
from tests.tiny_gemma3 import TinyGemma3, gemma3_metadata, gemma3_tensors

#: What stands for a part of an image where transformers is asked: no token of any tiny vocabulary.
PART = 5000

Tensors = dict[str, np.ndarray]


@dataclass
class Layout:
    """How a file is laid out: all in one, as Ollama has it, or the tower in a file of its own (llama.cpp)."""

    model: Path
    projector: Path | None = None


def randomise(model: Any, seed: int) -> Any:
    """Random weights of about the size that trained ones have; norms near 1, or near 0 where 1 is added."""
    torch.manual_seed(seed)
    model = model.float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            random = torch.randn_like(parameter)
            if parameter.ndim < 2:
                near_one = parameter.abs().mean() > 0.5
                parameter.copy_((1 if near_one else 0) + 0.2 * random)
            elif "embedding" in name or "embed_tokens" in name:
                parameter.copy_(0.5 * random)
            else:
                parameter.copy_(random / parameter[0].numel() ** 0.5)
    return model


def renamed(state: Tensors, names: dict[str, str], theirs: str, ours: str) -> Tensors:
    """Tensors whose names begin with `theirs`, the rest by `names`, now beginning with `ours`."""
    return {
        f"{ours}{after}.{kind}": state[f"{theirs}{before}.{kind}"]
        for before, after in names.items()
        for kind in ("weight", "bias")
        if f"{theirs}{before}.{kind}" in state
    }


def write(
    path: Path,
    architecture: str,
    metadata: dict[str, Any],
    tensors: Tensors,
    markers: Sequence[str] | None = None,
    chat_template: str = CHATML,
) -> Path:
    """A file with `metadata` (without the architecture's name); with `markers` it has a tokenizer."""
    writer = GGUFWriter(path, architecture)
    for key, value in metadata.items():
        if value is not None:
            writer.add(key if key.startswith("general.") else f"{architecture}.{key}", value)
    if markers is not None:
        add_tokenizer(writer, chat_template, markers=markers)
    for name, array in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write()
    return path


def state_of(model: Any) -> Tensors:
    return {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}


@dataclass
class TinyGemma3Vision:
    """Four rows of 16 patches to an image."""

    text: TinyGemma3
    hidden: int = 48
    layers: int = 2
    heads: int = 4
    feed_forward: int = 80
    image_size: int = 56
    patch_size: int = 14
    rows: int = 4
    seed: int = 0

    markers = ("<start_of_image>", "<end_of_image>")

    def build(self) -> Any:
        from transformers import Gemma3Config, Gemma3ForConditionalGeneration, SiglipVisionConfig

        text = self.text.build().config
        text.vocab_size = len(vocabulary()) + len(self.markers)
        vision = SiglipVisionConfig(
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=self.feed_forward,
            image_size=self.image_size,
            patch_size=self.patch_size,
            vision_use_head=False,
        )
        config = Gemma3Config(
            text_config=text,
            vision_config=vision,
            mm_tokens_per_image=self.rows,
            image_token_id=PART,
            tie_word_embeddings=self.text.tied,
        )
        return randomise(Gemma3ForConditionalGeneration(config), self.seed)

    def write(self, folder: Path, model: Any, *, apart: bool = False) -> Layout:
        """In one file, or with the tower `apart`."""
        state = state_of(model)
        text = _TextOf(model, "model.language_model.")
        tensors = gemma3_tensors(text, self.text)
        metadata = gemma3_metadata(self.text)
        vision = {
            "vision.block_count": self.layers,
            "vision.embedding_length": self.hidden,
            "vision.attention.head_count": self.heads,
            "vision.feed_forward_length": self.feed_forward,
            "vision.attention.layer_norm_epsilon": 1e-6,
            "vision.image_size": self.image_size,
            "vision.patch_size": self.patch_size,
        }
        tower = self.tower(state, apart)
        if not apart:
            metadata |= vision | {"mm.tokens_per_image": self.rows}
            path = write(folder / "gemma3.gguf", "gemma3", metadata, tensors | tower, self.markers)
            return Layout(path)
        vision |= {
            "general.type": "mmproj",
            "has_vision_encoder": True,
            "projector_type": "gemma3",
            "vision.projector.scale_factor": self.image_size // self.patch_size // int(self.rows**0.5),
            "vision.image_mean": [0.5] * 3,
            "vision.image_std": [0.5] * 3,
        }
        return Layout(
            write(folder / "text.gguf", "gemma3", metadata, tensors, self.markers),
            write(folder / "mmproj.gguf", "clip", vision, tower),
        )

    def tower(self, state: Tensors, apart: bool) -> Tensors:
        prefix = "model.vision_tower."
        if f"{prefix}vision_model.post_layernorm.weight" in state:
            prefix += "vision_model."
        ollama = {
            "layer_norm1": "layer_norm1", "layer_norm2": "layer_norm2", "self_attn.q_proj": "attn_q",
            "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_output",
            "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2",
        }  # fmt: skip
        clip = {"layer_norm1": "ln1", "layer_norm2": "ln2", "attn_output": "attn_out", "mlp.fc1": "ffn_up",
                "mlp.fc2": "ffn_down"}  # fmt: skip
        names = {theirs: clip.get(ours, ours) if apart else ours for theirs, ours in ollama.items()}
        outer = {
            "embeddings.patch_embedding": "patch_embd" if apart else "patch_embedding",
            "embeddings.position_embedding": "position_embd" if apart else "position_embedding",
            "post_layernorm": "post_ln" if apart else "post_layernorm",
        }
        tensors = renamed(state, outer, prefix, "v.")
        for i in range(self.layers):
            tensors |= renamed(state, names, f"{prefix}encoder.layers.{i}.", f"v.blk.{i}.")
        mm = "model.multi_modal_projector."
        own = "mm." if apart else "mm.mm_"
        tensors[f"{own}soft_emb_norm.weight"] = state[f"{mm}mm_soft_emb_norm.weight"] + 1
        tensors[f"{own}input_projection.weight"] = state[f"{mm}mm_input_projection_weight"]
        return tensors


@dataclass
class _WithLlama:
    """What models have in common whose text is a Llama's, or nearly."""

    text: TinyLlama
    hidden: int = 48
    layers: int = 2
    heads: int = 4
    feed_forward: int = 80
    image_size: int = 56
    patch_size: int = 14
    seed: int = 0

    architecture = "llama"
    markers: ClassVar[tuple[str, ...]] = ()

    @property
    def vocab(self) -> int:
        """Tokens of the text, its markers among them, and after them what stands for parts of images."""
        return len(vocabulary()) + len(self.markers) + 1

    @property
    def part_id(self) -> int:
        return self.vocab - 1

    def sizes(self) -> dict[str, Any]:
        """Of the text, as Hugging Face's configurations name them."""
        text = self.text
        return {
            "vocab_size": self.vocab,
            "hidden_size": text.hidden,
            "intermediate_size": text.feed_forward,
            "num_hidden_layers": text.layers,
            "num_attention_heads": text.heads,
            "num_key_value_heads": text.kv_heads,
            "max_position_embeddings": text.context,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
        }

    def metadata(self) -> dict[str, Any]:
        text = self.text
        return {
            "block_count": text.layers,
            "context_length": text.context,
            "embedding_length": text.hidden,
            "feed_forward_length": text.feed_forward,
            "attention.head_count": text.heads,
            "attention.head_count_kv": text.kv_heads,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.dimension_count": text.hidden // text.heads,
            "rope.freq_base": text.rope_base,
        }

    def vision_metadata(self) -> dict[str, Any]:
        return {
            "vision.block_count": self.layers,
            "vision.embedding_length": self.hidden,
            "vision.attention.head_count": self.heads,
            "vision.feed_forward_length": self.feed_forward,
            "vision.image_size": self.image_size,
            "vision.patch_size": self.patch_size,
        }

    def write(self, folder: Path, model: Any, *, apart: bool = False) -> Layout:
        """In one file, or with the tower `apart`."""
        state, metadata = state_of(model), self.metadata()
        tensors = self.text_tensors(model)
        tower = self.tower(state, apart)
        markers = [*self.markers, "<|part|>"]
        if not apart:
            metadata |= self.vision_metadata()
            path = write(folder / "one.gguf", self.architecture, metadata, tensors | tower, markers)
            return Layout(path)
        vision = self.vision_metadata() | {"general.type": "mmproj", **self.clip()}
        return Layout(
            write(folder / "text.gguf", self.text_architecture, metadata, tensors, markers),
            write(folder / "mmproj.gguf", "clip", vision, tower),
        )

    @property
    def text_architecture(self) -> str:
        """Of a text in a file of its own."""
        return self.architecture

    def text_tensors(self, model: Any) -> Tensors:
        return llama_tensors(_TextOf(model, "model.language_model."), self.text)

    def clip(self) -> dict[str, Any]:
        """Keys of a tower in a file of its own."""
        raise NotImplementedError

    def tower(self, state: Tensors, apart: bool) -> Tensors:
        raise NotImplementedError


@dataclass
class TinyLlava(_WithLlama):
    """Sixteen rows to an image; four layers of which three are used."""

    layers: int = 4
    swapped: bool = False  # as the first converters named the feed-forward network

    def build(self) -> Any:
        from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

        rope = {"rope_type": "default", "rope_theta": self.text.rope_base}
        vision = CLIPVisionConfig(
            hidden_size=self.hidden, num_hidden_layers=self.layers, num_attention_heads=self.heads,
            intermediate_size=self.feed_forward, image_size=self.image_size, patch_size=self.patch_size,
        )  # fmt: skip
        config = LlavaConfig(
            text_config=LlamaConfig(**self.sizes(), rope_parameters=rope),
            vision_config=vision,
            image_token_index=self.part_id,
            tie_word_embeddings=False,
        )
        return randomise(LlavaForConditionalGeneration(config), self.seed)

    def write(self, folder: Path, model: Any, *, apart: bool = True) -> Layout:
        return super().write(folder, model, apart=True)

    def clip(self) -> dict[str, Any]:
        return {
            "has_vision_encoder": True,
            "vision.image_mean": [0.48145466, 0.4578275, 0.40821073],
            "vision.image_std": [0.26862954, 0.26130258, 0.27577711],
            "use_gelu": False,
        }

    def tower(self, state: Tensors, apart: bool) -> Tensors:
        prefix = next(name for name in state if name.endswith("class_embedding")).removesuffix(
            "embeddings.class_embedding"
        )
        tensors = {"v.class_embd": state[f"{prefix}embeddings.class_embedding"]}
        outer = {
            "embeddings.patch_embedding": "patch_embd", "embeddings.position_embedding": "position_embd",
            "pre_layrnorm": "pre_ln",
        }  # fmt: skip
        tensors |= renamed(state, outer, prefix, "v.")
        up, down = ("ffn_down", "ffn_up") if self.swapped else ("ffn_up", "ffn_down")
        names = {
            "layer_norm1": "ln1", "layer_norm2": "ln2", "self_attn.q_proj": "attn_q",
            "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_out",
            "mlp.fc1": up, "mlp.fc2": down,
        }  # fmt: skip
        for i in range(self.layers):
            tensors |= renamed(state, names, f"{prefix}encoder.layers.{i}.", f"v.blk.{i}.")
        names = {"linear_1": "0", "linear_2": "2"}
        return tensors | renamed(state, names, "model.multi_modal_projector.", "mm.")


@dataclass
class TinyMistral3(_WithLlama):
    """Four patches to a row, at most four by four rows to an image."""

    image_size: int = 112

    architecture = "mistral3"
    markers: ClassVar[tuple[str, ...]] = ("[IMG_BREAK]", "[IMG_END]")

    def build(self) -> Any:
        from transformers import (
            Mistral3Config,
            Mistral3ForConditionalGeneration,
            MistralConfig,
            PixtralVisionConfig,
        )

        rope = {"rope_type": "default", "rope_theta": self.text.rope_base}
        vision = PixtralVisionConfig(
            hidden_size=self.hidden, num_hidden_layers=self.layers, num_attention_heads=self.heads,
            intermediate_size=self.feed_forward, image_size=self.image_size, patch_size=self.patch_size,
            head_dim=self.hidden // self.heads, hidden_act="silu",
        )  # fmt: skip
        text = MistralConfig(
            **self.sizes(), rope_parameters=rope, head_dim=self.text.hidden // self.text.heads,
            sliding_window=None,
        )  # fmt: skip
        config = Mistral3Config(
            text_config=text, vision_config=vision, image_token_index=self.part_id, tie_word_embeddings=False
        )
        return randomise(Mistral3ForConditionalGeneration(config), self.seed)

    @property
    def text_architecture(self) -> str:
        return "llama"

    def vision_metadata(self) -> dict[str, Any]:
        more = {
            "spatial_merge_size": 2,
            "vision.longest_edge": self.image_size,
            "vision.attention.layer_norm_epsilon": 1e-5,
        }
        return super().vision_metadata() | more

    def clip(self) -> dict[str, Any]:
        return {"projector_type": "pixtral", "vision.spatial_merge_size": 2}

    def tower(self, state: Tensors, apart: bool) -> Tensors:
        prefix = "model.vision_tower."
        outer = {"patch_conv": "patch_conv", "ln_pre": "encoder_norm"}
        if apart:
            outer = {"patch_conv": "patch_embd", "ln_pre": "pre_ln"}
        tensors = renamed(state, outer, prefix, "v.")
        names = {
            "attention_norm": "attn_norm", "ffn_norm": "ffn_norm", "attention.q_proj": "attn_q",
            "attention.k_proj": "attn_k", "attention.v_proj": "attn_v", "attention.o_proj": "attn_output",
            **{f"feed_forward.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
        }  # fmt: skip
        if apart:
            names |= {"attention_norm": "ln1", "ffn_norm": "ln2", "attention.o_proj": "attn_out"}
        for i in range(self.layers):
            tensors |= renamed(state, names, f"{prefix}transformer.layers.{i}.", f"v.blk.{i}.")
        mm = {"norm": "norm", "patch_merger.merging_layer": "patch_merger.merging_layer",
              "linear_1": "linear_1", "linear_2": "linear_2"}  # fmt: skip
        if apart:
            mm = {"norm": "input_norm", "patch_merger.merging_layer": "patch_merger", "linear_1": "1",
                  "linear_2": "2"}  # fmt: skip
        return tensors | renamed(state, mm, "model.multi_modal_projector.", "mm.")


@dataclass
class TinyQwen25VL(_WithLlama):
    """Four patches to a row, windows of two by two rows, every second layer looking at everything."""

    layers: int = 4
    most_pixels: int = 28 * 28 * 16

    architecture = "qwen25vl"
    markers: ClassVar[tuple[str, ...]] = ("<|vision_start|>", "<|vision_end|>")

    @property
    def text_architecture(self) -> str:
        return "qwen2vl"

    @property
    def sections(self) -> list[int]:
        """Of the pairs of a head."""
        pairs = self.text.hidden // self.text.heads // 2
        return [pairs - 2 * (pairs * 3 // 8), pairs * 3 // 8, pairs * 3 // 8]

    def build(self) -> Any:
        from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

        rope = {"rope_type": "default", "rope_theta": self.text.rope_base, "mrope_section": self.sections}
        config = Qwen2_5_VLConfig(
            text_config={**self.sizes(), "rope_parameters": rope, "bos_token_id": 0, "eos_token_id": 1},
            vision_config={
                "depth": self.layers, "hidden_size": self.hidden, "num_heads": self.heads,
                "intermediate_size": self.feed_forward, "patch_size": self.patch_size,
                "out_hidden_size": self.text.hidden, "window_size": 2 * 2 * self.patch_size,
                "fullatt_block_indexes": [1, 3],
            },
            image_token_id=self.part_id,
            video_token_id=self.vocab,
            vision_start_token_id=len(vocabulary()),
            vision_end_token_id=len(vocabulary()) + 1,
            tie_word_embeddings=False,
        )  # fmt: skip
        return randomise(Qwen2_5_VLForConditionalGeneration(config), self.seed)

    def metadata(self) -> dict[str, Any]:
        return super().metadata() | {"rope.mrope_section": self.sections}

    def vision_metadata(self) -> dict[str, Any]:
        more = {
            "vision.image_size": None,
            "vision.spatial_merge_size": 2,
            "vision.window_size": 2 * 2 * self.patch_size,
            "vision.fullatt_block_indexes": [1, 3],
            "vision.attention.layer_norm_epsilon": 1e-6,
            "vision.max_pixels": self.most_pixels,
        }
        return super().vision_metadata() | more

    def clip(self) -> dict[str, Any]:
        return {"projector_type": "qwen2.5vl_merger", "vision.fullatt_block_indexes": None,
                "vision.n_wa_pattern": 2}  # fmt: skip

    def text_tensors(self, model: Any) -> Tensors:
        text = _TextOf(model, "model.language_model.")
        state = state_of(text)
        names = {
            "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
            **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
            "self_attn.o_proj": "attn_output",
            **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
        }  # fmt: skip
        outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
        tensors = renamed(state, outer, "", "")
        for i in range(self.text.layers):
            tensors |= renamed(state, names, f"model.layers.{i}.", f"blk.{i}.")
        return tensors

    def tower(self, state: Tensors, apart: bool) -> Tensors:
        prefix = "model.visual."
        frames = state[f"{prefix}patch_embed.proj.weight"]
        first, second = ("v.patch_embd.weight", "v.patch_embd.weight.1") if apart else (
            "v.patch_embd_0.weight", "v.patch_embd_1.weight"
        )  # fmt: skip
        tensors = {first: frames[:, :, 0], second: frames[:, :, 1]}
        names = {
            "norm1": "ln1", "norm2": "ln2", "attn.proj": "attn_out",
            **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
        }  # fmt: skip
        for i in range(self.layers):
            tensors |= renamed(state, names, f"{prefix}blocks.{i}.", f"v.blk.{i}.")
            for kind in ("weight", "bias"):
                parts = np.split(state[f"{prefix}blocks.{i}.attn.qkv.{kind}"], 3)
                tensors |= {f"v.blk.{i}.attn_{n}.{kind}": p for n, p in zip("qkv", parts, strict=True)}
        merger = {"ln_q": "merger.ln_q", "mlp.0": "merger.mlp.0", "mlp.2": "merger.mlp.2"}
        found = renamed(state, merger, f"{prefix}merger.", "v.")
        if apart:
            found = {
                name.replace("v.merger.ln_q", "v.post_ln").replace("v.merger.mlp.", "mm."): array
                for name, array in found.items()
            }
        return tensors | found


class _TextOf:
    """The text model inside another, with the names it has alone."""

    def __init__(self, model: Any, prefix: str) -> None:
        self._model = model
        self._prefix = prefix

    def state_dict(self) -> dict[str, Any]:
        return {
            name.replace(self._prefix, "model."): tensor for name, tensor in self._model.state_dict().items()
        }


#: By name: the config of a tiny model that sees.
SEEING: dict[str, Callable[[], Any]] = {
    "gemma3": lambda: TinyGemma3Vision(TinyGemma3(pattern=2, window=32, tied=False)),
    "llava": lambda: TinyLlava(TinyLlama()),
    "mistral3": lambda: TinyMistral3(TinyLlama(rope_base=1e6)),
    "qwen25vl": lambda: TinyQwen25VL(TinyLlama(rope_base=1e6)),
}
