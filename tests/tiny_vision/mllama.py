"""A tiny random Llama 3.2 Vision."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from puna.batch import Image
from puna.images.canvas import grids
from puna.model.vision.options import VisionOptions
from tests.converted import converted
from tests.model.models.images import Text, reference_log_probabilities
from tests.tiny import permute, vocabulary
from tests.tiny_mllama import TinyMllama
from tests.tiny_vision.common import (
    PART,
    Layout,
    Tensors,
    WithLlama,
    channels_first,
    randomise,
    renamed,
)


@dataclass
class TinyMllamaVision(WithLlama):
    """At most four tiles of 16 patches; patches are kept as they were before two of three layers."""

    text: TinyMllama
    layers: int = 3
    global_layers: int = 2
    kept: tuple[int, ...] = (1, 2)
    tiles: int = 4

    architecture = "mllama"
    markers: ClassVar[tuple[str, ...]] = ("<|image|>",)

    def build(self) -> Any:
        from transformers import MllamaConfig, MllamaForConditionalGeneration

        text = self.text.build().config.to_dict() | {"vocab_size": len(vocabulary())}
        ratios = [list(grid) for grid in grids(self.tiles)]
        config = MllamaConfig(
            text_config=text,
            vision_config={
                "hidden_size": self.hidden, "num_hidden_layers": self.layers, "attention_heads": self.heads,
                "num_global_layers": self.global_layers, "intermediate_size": self.feed_forward,
                "image_size": self.image_size, "patch_size": self.patch_size, "max_num_tiles": self.tiles,
                "supported_aspect_ratios": ratios, "vision_output_dim": self.hidden * (1 + len(self.kept)),
                # What transformers counts from is the output of the first layer; the code of the authors, and
                # files, mean the input of a layer.
                "intermediate_layers_indices": [layer - 1 for layer in self.kept],
            },
            image_token_index=len(vocabulary()),
        )  # fmt: skip
        model = randomise(MllamaForConditionalGeneration(config), self.seed)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(("gate", "gate_attn", "gate_ffn")):
                    parameter.copy_(0.5 + torch.rand_like(parameter))
        return model

    def vision_metadata(self) -> dict[str, Any]:
        return super().vision_metadata() | {
            "vision.global.block_count": self.global_layers, "vision.max_num_tiles": self.tiles,
            "vision.intermediate_layers_indices": list(self.kept), "vision.num_channels": 3,
            "vision.attention.layer_norm_epsilon": 1e-5,
        }  # fmt: skip

    def write(self, folder: Path, model: Any, *, apart: bool = False) -> Layout:
        """All in one file, as Ollama writes it, or instead of `apart` as we convert the checkpoint."""
        if not apart:
            return super().write(folder, model)
        return Layout(converted(model, self.save).write(folder / "one.gguf"))

    def text_tensors(self, tensors: Tensors) -> Tensors:
        return {name: values for name, values in tensors.items() if not name.startswith(("v.", "mm."))}

    def tower(self, state: Tensors) -> Tensors:
        prefix = "model.vision_model."
        outer = {"patch_embedding": "patch_embd", "layernorm_pre": "pre_ln", "layernorm_post": "post_ln"}
        tensors = renamed(state, outer, prefix, "v.")
        tensors["v.class_embd"] = state[f"{prefix}class_embedding"]
        positions = f"{prefix}gated_positional_embedding."
        tensors["v.position_embd.weight"] = state[f"{positions}embedding"]
        tensors["v.tile_position_embd.weight"] = state[f"{positions}tile_embedding.weight"]
        gate = np.tanh(state[f"{positions}gate"])
        tensors |= {"v.position_embd.gate": 1 - gate, "v.tile_position_embd.gate": gate}
        for kind in ("pre", "post"):
            theirs = f"{prefix}{kind}_tile_positional_embedding."
            tensors[f"v.{kind}_tile_position_embd.weight"] = state[f"{theirs}embedding.weight"]
            tensors[f"v.{kind}_tile_position_embd.gate"] = np.tanh(state[f"{theirs}gate"])
        names = {
            "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.fc1": "ffn_up",
            "mlp.fc2": "ffn_down", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
        }  # fmt: skip
        both = [
            ("transformer", "v.blk", self.layers),
            ("global_transformer", "v.global.blk", self.global_layers),
        ]
        for theirs, ours, count in both:
            for i in range(count):
                layer = f"{prefix}{theirs}.layers.{i}."
                tensors |= renamed(state, names, layer, f"{ours}.{i}.")
                for part in "qk":  # permuted, as the text's are
                    array = state[f"{layer}self_attn.{part}_proj.weight"]
                    tensors[f"{ours}.{i}.attn_{part}.weight"] = permute(array, self.heads)
                if theirs.startswith("global"):
                    for part in ("attn", "ffn"):
                        tensors[f"{ours}.{i}.{part}_gate"] = np.tanh(state[f"{layer}gate_{part}"])
        return tensors | renamed(state, {"multi_modal_projector": "mm.0"}, "model.", "")

    def logits(
        self, theirs: Any, options: VisionOptions, tokens: list[int], images: list[Image]
    ) -> torch.Tensor:
        """The tower alone, then the text alone, in the parts in which transformers can read it."""
        from transformers import MllamaForCausalLM

        text = MllamaForCausalLM(theirs.config.text_config).eval()
        text.model, text.lm_head = theirs.model.language_model, theirs.lm_head
        token, places = len(vocabulary()), [place for place, item in enumerate(tokens) if item == PART]
        states = [self.states(theirs, options, image) for image in images]
        ids = [token if item == PART else item for item in tokens]
        found = reference_log_probabilities(text, Text(ids, dict(zip(places, states, strict=True))))
        # There is no logit of the token that images stand at, nor of what else is no text.
        rest = torch.full((len(ids), self.vocab - found.shape[1]), -torch.inf)
        return torch.cat([found, rest], dim=1)

    def states(self, theirs: Any, options: VisionOptions, image: Image) -> torch.Tensor:
        """What the text is shown of an image: [tiles * positions, hidden]."""
        pixels, grid = channels_first(options, image), image.pixels.grid
        padded = torch.zeros(1, 1, self.tiles, *pixels.shape[1:])
        padded[0, 0, : len(pixels)] = pixels
        mask = torch.zeros(1, 1, self.tiles, dtype=torch.long)
        mask[0, 0, : len(pixels)] = 1
        seen = theirs.model.vision_model(
            pixel_values=padded,
            aspect_ratio_ids=torch.tensor([[grids(self.tiles).index(grid) + 1]]),
            aspect_ratio_mask=mask,
        ).last_hidden_state
        projected = theirs.model.multi_modal_projector(seen)[0, 0, : len(pixels)]
        return projected.reshape(-1, projected.shape[-1])
