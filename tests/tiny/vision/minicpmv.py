"""Tiny random MiniCPM-V 2.5 to 4.5, from parts of transformers and PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch

from puna.batch import Image
from puna.vision.options import VisionOptions
from puna.vision.pixels import normalised
from tests.tiny.vision.common import PART, Layout, WithLlama, randomise


class Resampler(torch.nn.Module):
    """Learned queries that attend to patches with PyTorch's attention."""

    def __init__(self, hidden: int, size: int, queries: int) -> None:
        super().__init__()
        self.query = torch.nn.Parameter(torch.zeros(queries, size))
        self.kv_proj = torch.nn.Linear(hidden, size, bias=False)
        self.attn = torch.nn.MultiheadAttention(size, size // 128, batch_first=True)
        self.ln_q, self.ln_kv, self.ln_post = (torch.nn.LayerNorm(size, eps=1e-6) for _ in range(3))
        self.proj = torch.nn.Parameter(torch.zeros(size, size))

    def forward(self, patches: torch.Tensor, height: int, width: int) -> torch.Tensor:
        values = self.ln_kv(self.kv_proj(patches))[None]
        keys = values + places(values.shape[-1], height, width)
        found, _ = self.attn(self.ln_q(self.query)[None], keys, values)
        return self.ln_post(found[0]) @ self.proj


def places(size: int, height: int, width: int) -> torch.Tensor:
    """Return [height * width, size]: waves of the column in the first half, of the row in the second."""
    rows = []
    for row in range(height):
        for column in range(width):
            angles = [place / 10000 ** (4 * i / size) for place in (column, row) for i in range(size // 4)]
            halves = torch.tensor(angles, dtype=torch.float64).reshape(2, -1)
            rows.append(torch.cat([halves.sin(), halves.cos()], dim=1).reshape(-1))
    return torch.stack(rows).float()


class MiniCPMV(torch.nn.Module):
    """Model with the names of the authors' code."""

    def __init__(self, vision: Any, resampler: Resampler, text: Any, config: SimpleNamespace) -> None:
        super().__init__()
        self.vpm, self.resampler, self.llm, self.config = vision, resampler, text, config

    def forward(self, ids: torch.Tensor, tiles: list[torch.Tensor]) -> torch.Tensor:
        rows = []
        for tile in tiles:  # [1, 3, height, width]
            height, width = (size // self.vpm.patch_size for size in tile.shape[2:])
            patches = self.vpm(pixel_values=tile).last_hidden_state[0]
            rows.append(self.resampler(patches, height, width))
        embedded = self.llm.model.embed_tokens(ids.clamp(max=self.llm.config.vocab_size - 1))
        embedded[ids == PART] = torch.cat(rows)
        return self.llm(inputs_embeds=embedded[None]).logits[0]


class MiniCPMO(MiniCPMV):
    """Variant with audio modules, which files leave out."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.apm, self.audio_projection_layer, self.tts = (torch.nn.Linear(8, 8) for _ in range(3))


#: The text model, by transformers' name.
_TEXTS = {"2.5": "llama", "2.6": "qwen2", "4.0": "llama", "4.5": "qwen3"}


@dataclass
class TinyMiniCPMV(WithLlama):
    """Six rows per slice, up to nine slices per image, and the whole picture."""

    queries: int = 6
    positions: int = 5  # along a side
    version: str = "4.0"
    audio: bool = False

    markers: ClassVar[tuple[str, ...]] = ("<image>", "</image>", "<slice>", "</slice>")

    @property
    def pictures(self) -> dict[str, Any]:
        return {"norm_mean": [0.5] * 3, "norm_std": [0.5] * 3}

    def build(self) -> Any:
        from transformers import AutoConfig, AutoModelForCausalLM, Idefics3VisionConfig
        from transformers.models.idefics3.modeling_idefics3 import Idefics3VisionTransformer

        rope = {"rope_type": "default", "rope_theta": self.text.rope_base}
        vision = Idefics3VisionConfig(
            hidden_size=self.hidden, num_hidden_layers=self.layers, num_attention_heads=self.heads,
            intermediate_size=self.feed_forward, image_size=self.positions * self.patch_size,
            patch_size=self.patch_size,
        )  # fmt: skip
        text = AutoConfig.for_model(_TEXTS[self.version], **self.sizes(), rope_parameters=rope)
        text.head_dim = self.text.hidden // self.text.heads
        within = "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "patch_size"
        said = {
            "version": float(self.version), "image_size": self.image_size, "query_num": self.queries,
            "drop_vision_last_layer": False, "rope_theta": self.text.rope_base,
            "vision_config": {name: getattr(vision, name) for name in (*within, "image_size")},
        }  # fmt: skip
        if self.version == "2.5":
            del said["version"]
        model = (MiniCPMO if self.audio else MiniCPMV)(
            Idefics3VisionTransformer(vision),
            Resampler(self.hidden, self.text.hidden, self.queries),
            AutoModelForCausalLM.from_config(text),
            SimpleNamespace(**self.sizes(), **said, head_dim=text.head_dim),
        )
        return randomise(model, self.seed)

    def write(self, folder: Any, model: Any, *, apart: bool = True) -> Layout:
        """Write the only layout."""
        return super().write(folder, model, apart=True)

    def logits(
        self, theirs: Any, options: VisionOptions, tokens: list[int], images: list[Image]
    ) -> torch.Tensor:
        tiles = []
        for image in images:
            whole = [] if image.pixels.overview is None else [image.pixels.overview]
            for pixels in (*whole, *image.pixels.pixels):
                first = np.ascontiguousarray(pixels.transpose(2, 0, 1))
                flat = normalised(first.reshape(1, -1), options.mean, options.std)
                tiles.append(torch.from_numpy(flat.reshape(1, *first.shape)))
        return theirs(torch.tensor(tokens), tiles)

    def written(self, image: Image) -> str:
        rows, columns = image.pixels.grid
        return written(image.pixels.grid, [[self.queries, 1]] * (1 + rows * columns), divisor=1)


def written(grid: tuple[int, int], sides: list[list[int]], *, divisor: int) -> str:
    """Return the text of MiniCPM-V 4.6's processor, which is 2.6's without the image's number.

    `sides` are rows and columns of patches of the whole picture and of each slice; `divisor` patches become
    one row.
    """
    from transformers.models.minicpmv4_6.processing_minicpmv4_6 import MiniCPMV4_6Processor

    words = SimpleNamespace(
        image_start_token="<image>", image_end_token="</image>", image_token="<|part|>",
        slice_start_token="<slice>", slice_end_token="</slice>", slice_mode=True,
    )  # fmt: skip
    shown = {
        "grids": [list(grid)],
        "num_patches_per_image": [len(sides)],
        "target_sizes": np.array(sides),
    }
    return MiniCPMV4_6Processor.replace_image_token(words, shown, 0, image_token_divisor=divisor)
