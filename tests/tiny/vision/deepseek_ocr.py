"""Tiny random DeepSeek-OCR from parts of transformers: its successor's SAM and text model, and CLIP."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from puna.batch import Image
from puna.vision.options import VisionOptions
from puna.vision.pixels import normalised
from tests.tiny.vision.common import PART, Tensors, WithLlama, randomise, renamed


class DeepSeekOcr(torch.nn.Module):
    def __init__(self, sam: Any, clip: Any, text: Any, projector: torch.nn.Linear) -> None:
        super().__init__()
        self.sam, self.clip, self.text, self.projector = sam, clip, text, projector
        size, vocab = text.config.hidden_size, text.config.vocab_size
        self.image_newline, self.view_seperator = (torch.nn.Parameter(torch.zeros(size)) for _ in range(2))
        self.lm_head = torch.nn.Linear(size, vocab, bias=False)

    def see(self, pixels: torch.Tensor) -> torch.Tensor:
        """Map [1, 3, side, side] to a square of rows [rows, rows, size]."""
        seen = self.sam(pixels).last_hidden_state.flatten(2).transpose(1, 2)
        side, inner = int(seen.shape[1] ** 0.5), self.clip
        table = inner.embeddings.position_embedding.weight
        old = int((len(table) - 1) ** 0.5)
        grid = table[1:].reshape(1, old, old, -1).permute(0, 3, 1, 2)
        grid = torch.nn.functional.interpolate(
            grid, (side, side), mode="bicubic", antialias=True, align_corners=False
        )
        places = torch.cat([table[:1], grid.flatten(2).transpose(1, 2)[0]])
        hidden = torch.cat([inner.embeddings.class_embedding[None, None], seen], dim=1) + places
        hidden = inner.encoder(inputs_embeds=inner.pre_layrnorm(hidden)).last_hidden_state
        return self.projector(torch.cat([hidden[:, 1:], seen], dim=-1)).reshape(side, side, -1)

    def lines(self, grid: torch.Tensor) -> torch.Tensor:
        """Return the rows of a grid with a newline after each line."""
        ends = self.image_newline.expand(len(grid), 1, -1)
        return torch.cat([grid, ends], dim=1).flatten(0, 1)

    def forward(
        self, ids: torch.Tensor, images: list[tuple[torch.Tensor, torch.Tensor, Any]]
    ) -> torch.Tensor:
        rows = []
        for tiles, whole, (height, width) in images:
            if height:
                seen = [self.see(tile[None]) for tile in tiles]
                across = [torch.cat(seen[row * width : (row + 1) * width], dim=1) for row in range(height)]
                rows.append(self.lines(torch.cat(across)))
            rows += [self.lines(self.see(whole)), self.view_seperator[None]]
        embedded = self.text.embed_tokens(ids.clamp(max=self.text.config.vocab_size - 1))
        embedded[ids == PART] = torch.cat(rows)
        return self.lm_head(self.text(inputs_embeds=embedded[None]).last_hidden_state)[0]


#: Names of parts in the authors' code, which differ from transformers'.
_PUBLISHED = {
    r"^text\.": "model.", r"^projector\.": "model.projector.layers.", r"^(image_new|view_sep)": r"model.\1",
    r"^clip\.encoder": "model.vision_model.transformer", r"^clip\.": "model.vision_model.",
    r"^sam\.layers\.(\d)\.layer_norm": r"sam.blocks.\1.norm", r"^sam\.layers": "sam.blocks",
    r"^sam\.patch_embed\.projection": "sam.patch_embed.proj", r"^sam\.neck\.conv1": "sam.neck.0",
    r"^sam\.neck\.layer_norm1": "sam.neck.1", r"^sam\.neck\.conv2": "sam.neck.2",
    r"^sam\.neck\.layer_norm2": "sam.neck.3", r"^sam\.proj\.conv1": "sam.net_2",
    r"^sam\.proj\.conv2": "sam.net_3", r"^sam\.": "model.sam_model.",
}  # fmt: skip


class DeepseekOCRForCausalLM:
    """Published form of a model: joint queries, keys and values, separate experts."""

    def __init__(self, model: DeepSeekOcr, config: dict[str, Any]) -> None:
        self._state = dict(model.state_dict())
        self.config = SimpleNamespace(**config)

    def state_dict(self) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        for name, values in self._state.items():
            if "clip.post_layernorm" in name or name.endswith("position_ids"):
                continue
            for theirs, published in _PUBLISHED.items():
                name = re.sub(theirs, published, name)
            experts = name.removesuffix("gate_up_proj").removesuffix("down_proj")
            if experts.endswith("mlp.experts."):
                parts = values.chunk(2, dim=1) if name.endswith("gate_up_proj") else (values,)
                names = ("gate_proj", "up_proj") if len(parts) > 1 else ("down_proj",)
                for part, stacked in zip(names, parts, strict=True):
                    for number, expert in enumerate(stacked):
                        found[f"{experts}{number}.{part}.weight"] = expert.contiguous()
            else:
                found[name] = values
        return _joined(found)


def _joined(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Join the queries, keys and values of CLIP."""
    layer = "model.vision_model.transformer.layers."
    for name in [name for name in state if name.startswith(layer) and "q_proj" in name]:
        parts = [state.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        state[name.replace("q_proj", "qkv_proj")] = torch.cat(parts)
    return state


@dataclass
class TinyDeepSeekOcr(WithLlama):
    """Nine rows per tile of 40 pixels, two to nine tiles, and sixteen rows for the whole picture."""

    sam_hidden: int = 32

    architecture = "deepseekocr"

    def build(self) -> Any:
        from transformers import CLIPVisionConfig, CLIPVisionModel
        from transformers.models.deepseek_ocr2 import configuration_deepseek_ocr2 as configs
        from transformers.models.deepseek_ocr2 import modeling_deepseek_ocr2 as models

        sam = configs.DeepseekOcr2SamVisionConfig(
            hidden_size=self.sam_hidden, output_channels=12, num_hidden_layers=3, num_attention_heads=4,
            image_size=64, patch_size=4, window_size=3, global_attn_indexes=[1], mlp_dim=40,
            downsample_channels=[20, self.hidden],
        )  # fmt: skip
        clip = CLIPVisionConfig(
            hidden_size=self.hidden, num_hidden_layers=self.layers, num_attention_heads=self.heads,
            intermediate_size=self.feed_forward, image_size=self.image_size, patch_size=self.patch_size,
        )  # fmt: skip
        text = configs.DeepseekOcr2TextConfig(
            **self.sizes() | {"rms_norm_eps": 1e-6}, n_routed_experts=6, n_shared_experts=2,
            num_experts_per_tok=3, moe_intermediate_size=32, mlp_layer_types=["dense", "sparse"],
            rope_parameters={"rope_type": "default", "rope_theta": self.text.rope_base},
        )  # fmt: skip
        model = DeepSeekOcr(
            models.DeepseekOcr2SamVisionEncoder(sam),
            CLIPVisionModel(clip),
            models.DeepseekOcr2TextModel(text),
            torch.nn.Linear(2 * self.hidden, self.text.hidden),
        )
        return randomise(model, self.seed)

    def save(self, folder: Path, model: Any) -> Path:
        return super().save(folder, self.published(model))

    def published(self, model: DeepSeekOcr) -> DeepseekOCRForCausalLM:
        clip = {
            "heads": self.heads, "image_size": self.image_size, "layers": self.layers,
            "patch_size": self.patch_size, "width": self.hidden,
        }  # fmt: skip
        sam = {"heads": 4, "layers": 3, "width": self.sam_hidden}
        text = self.sizes() | {
            "rms_norm_eps": 1e-6, "first_k_dense_replace": 1, "n_routed_experts": 6, "n_shared_experts": 2,
            "num_experts_per_tok": 3, "moe_intermediate_size": 32, "rope_theta": self.text.rope_base,
            "kv_lora_rank": None, "q_lora_rank": None, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0,
            "v_head_dim": 0, "n_group": 1, "topk_group": 1, "topk_method": "greedy", "use_mla": False,
        }  # fmt: skip
        vision = {"image_size": 64, "width": {"clip-l-14-224": clip, "sam_vit_b": sam}}
        return DeepseekOCRForCausalLM(
            model,
            {**text, "language_config": text, "vision_config": vision, "rope_theta": text["rope_theta"]},
        )

    def metadata(self) -> dict[str, Any]:
        """Metadata without the keys that Ollama omits."""
        left_out = "feed_forward_length", "shared_count", "group_count", "group_used_count"
        return {f"expert_{name}": None for name in left_out}

    def vision_metadata(self) -> dict[str, Any]:
        found = super().vision_metadata()
        found["vision.head_count"] = found.pop("vision.attention.head_count")
        return found | {
            "sam.block_count": 3,
            "sam.embedding_length": self.sam_hidden,
            "sam.head_count": 4,
            "sam.global_attention_indexes": [1],
        }

    def tower(self, state: Tensors) -> Tensors:
        inner = "clip."
        tensors = {
            "s.position_embd": state["sam.pos_embed"], "mm.image_newline": state["image_newline"],
            "mm.view_seperator": state["view_seperator"],
            "v.class_embd": state[f"{inner}embeddings.class_embedding"],
        }  # fmt: skip
        tensors |= renamed(state, {"projector": "mm.layers"}, "", "")
        outer = {
            "patch_embed.projection": "patch_embd", "neck.conv1": "neck.0", "neck.layer_norm1": "neck.1",
            "neck.conv2": "neck.2", "neck.layer_norm2": "neck.3", "proj.conv1": "net_2",
            "proj.conv2": "net_3",
        }  # fmt: skip
        tensors |= renamed(state, outer, "sam.", "s.")
        same = ("attn.qkv", "attn.proj", "mlp.lin1", "mlp.lin2")
        names = {"layer_norm1": "norm1", "layer_norm2": "norm2", **{name: name for name in same}}
        for i in range(3):
            tensors |= renamed(state, names, f"sam.layers.{i}.", f"s.blk.{i}.")
            for axis in "hw":
                tensors[f"s.blk.{i}.attn.rel_pos_{axis}"] = state[f"sam.layers.{i}.attn.rel_pos_{axis}"]
        own = {
            "embeddings.patch_embedding": "patch_embd", "embeddings.position_embedding": "position_embd",
            "pre_layrnorm": "pre_layrnorm",
        }  # fmt: skip
        tensors |= renamed(state, own, inner, "v.")
        same = ("layer_norm1", "layer_norm2", "self_attn.out_proj", "mlp.fc1", "mlp.fc2")
        for i in range(self.layers):
            layer = f"{inner}encoder.layers.{i}."
            tensors |= renamed(state, {name: name for name in same}, layer, f"v.blk.{i}.")
            for kind in ("weight", "bias"):
                parts = [state[f"{layer}self_attn.{part}_proj.{kind}"] for part in "qkv"]
                tensors[f"v.blk.{i}.self_attn.qkv_proj.{kind}"] = np.concatenate(parts)
        return tensors

    def logits(
        self, theirs: Any, options: VisionOptions, tokens: list[int], images: list[Image]
    ) -> torch.Tensor:
        def shown(pixels: np.ndarray) -> torch.Tensor:
            first = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
            flat = normalised(first.reshape(len(first), -1), options.mean, options.std)
            return torch.from_numpy(flat.reshape(first.shape))

        each = [image.pixels for image in images]
        return theirs(
            torch.tensor(tokens),
            [
                (shown(one.pixels) if one.grid[0] else None, shown(one.overview[None]), one.grid)
                for one in each
            ],
        )
