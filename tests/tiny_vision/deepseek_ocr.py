"""A tiny random DeepSeek-OCR, of parts that transformers has: SAM and text of its successor, and CLIP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from puna.batch import Image
from puna.images.pixels import normalised
from puna.model.vision.options import VisionOptions
from tests.tiny_vision.common import PART, Tensors, WrittenByHand, randomise, renamed


class DeepSeekOcr(torch.nn.Module):
    def __init__(self, sam: Any, clip: Any, text: Any, projector: torch.nn.Linear) -> None:
        super().__init__()
        self.sam, self.clip, self.text, self.projector = sam, clip, text, projector
        size, vocab = text.config.hidden_size, text.config.vocab_size
        self.image_newline, self.view_seperator = (torch.nn.Parameter(torch.zeros(size)) for _ in range(2))
        self.lm_head = torch.nn.Linear(size, vocab, bias=False)

    def see(self, pixels: torch.Tensor) -> torch.Tensor:
        """[1, 3, side, side] to a square of rows [rows, rows, size]."""
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
        """The rows of a grid, each line with a newline."""
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


@dataclass
class TinyDeepSeekOcr(WrittenByHand):
    """Nine rows to a tile, two to nine tiles to an image, and sixteen to the whole; tiles have 40 pixels."""

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

    @property
    def text_architecture(self) -> str:
        return "deepseek2-ocr"

    def metadata(self) -> dict[str, Any]:
        return super().metadata() | {
            "attention.layer_norm_rms_epsilon": 1e-6,
            "expert_count": 6,
            "expert_used_count": 3,
            "leading_dense_block_count": 1,
        }

    def vision_metadata(self) -> dict[str, Any]:
        found = super().vision_metadata()
        found["vision.head_count"] = found.pop("vision.attention.head_count")
        return found | {
            "sam.block_count": 3,
            "sam.embedding_length": self.sam_hidden,
            "sam.head_count": 4,
            "sam.global_attention_indexes": [1],
        }

    def clip(self) -> dict[str, Any]:
        return {
            "projector_type": "deepseekocr",
            "vision.head_count": None,
            "vision.attention.head_count": self.heads,
            "vision.attention.layer_norm_epsilon": 1e-5,
            "vision.sam.block_count": 3,
            "vision.sam.embedding_length": self.sam_hidden,
            "vision.sam.head_count": 4,
        }

    def text_tensors(self, model: Any) -> Tensors:
        state = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
        outer = {"text.embed_tokens": "token_embd", "text.norm": "output_norm", "lm_head": "output"}
        tensors = renamed(state, outer, "", "")
        halves = {f"{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")}
        names = {
            "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
            **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
            "self_attn.o_proj": "attn_output", "mlp.gate": "ffn_gate_inp",
            **{f"mlp.{theirs}": ours for theirs, ours in halves.items()},
            **{f"mlp.shared_experts.{theirs}": f"{ours}_shexp" for theirs, ours in halves.items()},
        }  # fmt: skip
        for i in range(self.text.layers):
            tensors |= renamed(state, names, f"text.layers.{i}.", f"blk.{i}.")
        gate, up = np.split(state["text.layers.1.mlp.experts.gate_up_proj"], 2, axis=1)
        down = state["text.layers.1.mlp.experts.down_proj"]
        parts = {"gate": gate, "up": up, "down": down}
        return tensors | {f"blk.1.ffn_{name}_exps.weight": array for name, array in parts.items()}

    def tower_as(self, state: Tensors, apart: bool) -> Tensors:
        s, mm = ("v.sam.", "v.") if apart else ("s.", "mm.")
        inner = "clip."
        tensors = {
            f"{s}{'pos_embd.weight' if apart else 'position_embd'}": state["sam.pos_embed"],
            f"{mm}image_newline": state["image_newline"],
            f"{mm}view_seperator": state["view_seperator"],
            "v.class_embd": state[f"{inner}embeddings.class_embedding"],
        }
        tensors |= renamed(state, {"projector": "mm.model.fc" if apart else "mm.layers"}, "", "")
        outer = {
            "patch_embed.projection": "patch_embd", "neck.conv1": "neck.0", "neck.layer_norm1": "neck.1",
            "neck.conv2": "neck.2", "neck.layer_norm2": "neck.3", "proj.conv1": "net_2",
            "proj.conv2": "net_3",
        }  # fmt: skip
        tensors |= renamed(state, outer, "sam.", s)
        norms = ("pre_ln", "post_ln") if apart else ("norm1", "norm2")
        names = {
            "layer_norm1": norms[0], "layer_norm2": norms[1], "attn.qkv": "attn.qkv",
            "attn.proj": "attn.out" if apart else "attn.proj", "mlp.lin1": "mlp.lin1", "mlp.lin2": "mlp.lin2",
        }  # fmt: skip
        for i in range(3):
            tensors |= renamed(state, names, f"sam.layers.{i}.", f"{s}blk.{i}.")
            for axis in "hw":
                ours = f"attn.pos_{axis}.weight" if apart else f"attn.rel_pos_{axis}"
                tensors[f"{s}blk.{i}.{ours}"] = state[f"sam.layers.{i}.attn.rel_pos_{axis}"]
        own = {
            "embeddings.patch_embedding": "patch_embd", "embeddings.position_embedding": "position_embd",
            "pre_layrnorm": "pre_ln" if apart else "pre_layrnorm",
        }  # fmt: skip
        tensors |= renamed(state, own, inner, "v.")
        names = {
            "layer_norm1": "ln1", "layer_norm2": "ln2", "self_attn.out_proj": "attn_out",
            "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
        } if apart else {
            each: each for each in ("layer_norm1", "layer_norm2", "self_attn.out_proj", "mlp.fc1", "mlp.fc2")
        }  # fmt: skip
        for i in range(self.layers):
            layer = f"{inner}encoder.layers.{i}."
            tensors |= renamed(state, names, layer, f"v.blk.{i}.")
            for kind in ("weight", "bias"):
                parts = [state[f"{layer}self_attn.{part}_proj.{kind}"] for part in "qkv"]
                joined = "attn_qkv" if apart else "self_attn.qkv_proj"
                tensors[f"v.blk.{i}.{joined}.{kind}"] = np.concatenate(parts)
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
