"""Tiny random vision models of Qwen3-VL."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from tests.tiny.decoders import QWEN3_MOE, SIZES, TinyDecoder
from tests.tiny.hybrids import QWEN4, SETTINGS, TinyHybrid
from tests.tiny.vision.common import Layout, Tensors, randomise, renamed
from tests.tiny.vision.qwen import TinyQwen

HEAD = {"num_hidden_layers": 3, "head_dim": 16}


@dataclass
class TinyQwen3VL(TinyQwen):
    """Two of four layers have DeepStack mergers; positions are interpolated from six by six."""

    layers: int = 4
    speaking: tuple[int, ...] = (0, 2)
    table_side: int = 6
    decoder: TinyDecoder = field(default_factory=lambda: TinyDecoder("qwen3_vl_text", HEAD))

    markers: ClassVar[tuple[str, ...]] = ("<|vision_start|>", "<|vision_end|>")

    @property
    def hf(self) -> str:
        return self.decoder.hf.removesuffix("_text")

    @property
    def sections(self) -> list[int]:
        return [4, 2, 2]

    def settings(self) -> dict[str, Any]:
        """Settings of the text, as transformers names them."""
        return {**SIZES, "rope_parameters": self.rope, **self.decoder.settings, "vocab_size": self.vocab}

    def build(self) -> Any:
        from transformers import AutoConfig, AutoModelForImageTextToText

        config = AutoConfig.for_model(
            self.hf,
            text_config=self.settings(),
            vision_config={
                "depth": self.layers, "hidden_size": self.hidden, "num_heads": self.heads,
                "intermediate_size": self.feed_forward, "patch_size": self.patch_size,
                "out_hidden_size": self.text.hidden, "num_position_embeddings": self.table_side**2,
                "deepstack_visual_indexes": list(self.speaking),
            },
            **self.tokens,
            tie_word_embeddings=False,
        )  # fmt: skip
        return randomise(AutoModelForImageTextToText.from_config(config), self.seed)

    def metadata(self) -> dict[str, Any]:
        without = dict.fromkeys(("rope.dimension_sections", "n_deepstack_layers"))
        return {**without, "mrope_sections": self.sections}

    @property
    def sized(self) -> dict[str, Any]:
        return {**super().sized, "vision.shortest_edge": 4 * 28 * 28}

    def vision_metadata(self) -> dict[str, Any]:
        speaking = list(self.speaking) or None
        return super().vision_metadata() | {
            "vision.deepstack_visual_indexes": speaking
        }  # fmt: skip

    def tower(self, state: Tensors) -> Tensors:
        prefix = "model.visual."
        names = {"attn.proj": "attn_out"}
        names |= {same: same for same in ("norm1", "norm2", "mlp.linear_fc1", "mlp.linear_fc2")}
        tensors = self.blocks(state, names)
        frames = state[f"{prefix}patch_embed.proj.weight"]
        tensors["v.patch_embed.weight"] = frames.reshape(-1, *frames.shape[2:])
        tensors["v.patch_embed.bias"] = state[f"{prefix}patch_embed.proj.bias"]
        tensors["v.pos_embed.weight"] = state[f"{prefix}pos_embed.weight"]
        parts = {name: name for name in ("norm", "linear_fc1", "linear_fc2")}
        tensors |= renamed(state, parts, f"{prefix}merger.", "v.merger.")
        for number in range(len(self.speaking)):
            theirs = f"{prefix}deepstack_merger_list.{number}."
            tensors |= renamed(state, parts, theirs, f"v.deepstack_merger.{number}.")
        return tensors


@dataclass
class TinyQwen35Vision(TinyQwen3VL):
    """Tiny Qwen 3.5 with vision: no DeepStack mergers, and a hybrid text model."""

    speaking: tuple[int, ...] = ()
    decoder: TinyDecoder = field(default_factory=lambda: TinyHybrid("qwen3_5_text", SETTINGS))

    @property
    def sections(self) -> list[int]:
        return [2, 1, 1]

    def settings(self) -> dict[str, Any]:
        rope = self.rope | SETTINGS["rope_parameters"]
        return super().settings() | {"rope_parameters": rope}


@dataclass
class TinyQwen4Vision(TinyQwen35Vision):
    """Tiny Qwen 3.8 Flash Next with vision, whose blocks of positions and n-grams contain parts of images."""

    decoder: TinyDecoder = field(default_factory=lambda: QWEN4)

    def write(self, folder: Path, model: Any, *, apart: bool = True) -> Layout:
        return super().write(folder, model, apart=True)


QWEN3_VL_MOE = TinyDecoder("qwen3_vl_moe_text", {**QWEN3_MOE.settings, **HEAD})
