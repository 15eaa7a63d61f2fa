"""Llama 3.2 Vision in Ollama's layout, against an independent reading of Ollama's Go code.

Written from `convert/convert_mllama.go` and `model/models/mllama/` at f63eea3d2. Where Ollama, transformers
and the authors' code disagree, a flag selects one, and `puna.vision.towers` says which one Puna follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
import torch.nn.functional as F

from puna.batch import Image
from puna.model.load import load_model
from puna.ops import Backend
from puna.vision.pixels import CLIP_MEAN, CLIP_STD, grids
from tests.model.models.parity import check_close, original
from tests.tiny.converted import Contents, contents_of
from tests.tiny.mllama import TinyMllama
from tests.tiny.vision.common import state_of
from tests.tiny.vision.mllama import TinyMllamaVision
from tests.vision.seeing import Pair, images_of, picture

_LAYER = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.o_proj": "attn_output",
    **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
}  # fmt: skip
_SEES = {**_LAYER, "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"}
_READS = {
    **_LAYER, **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
    **{f"cross_attn.{part}_proj": f"cross_attn_{part}_proj" for part in "qkvo"},
    **{f"cross_attn.{part}_norm": f"cross_attn_{part}_norm" for part in "qk"},
}  # fmt: skip


def permuted(values: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows of each head from two halves to neighbouring pairs."""
    return values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)


def laid_out(model: Any, config: TinyMllamaVision) -> dict[str, np.ndarray]:
    """Return the tensors as `mllamaModel.Tensors` and `Replacements` make and name them."""
    state = state_of(model)
    found = {
        "token_embd.weight": state["model.language_model.embed_tokens.weight"],
        "output_norm.weight": state["model.language_model.norm.weight"],
        "output.weight": state["lm_head.weight"],
        "mm.0.weight": state["model.multi_modal_projector.weight"],
        "mm.0.bias": state["model.multi_modal_projector.bias"],
        "v.class_embd": state["model.vision_model.class_embedding"],
        "v.patch_embd.weight": state["model.vision_model.patch_embedding.weight"],
    }
    gated = "model.vision_model.gated_positional_embedding."
    gate = np.tanh(state[f"{gated}gate"])
    found |= {
        "v.position_embd.weight": state[f"{gated}embedding"], "v.position_embd.gate": 1 - gate,
        "v.tile_position_embd.weight": state[f"{gated}tile_embedding.weight"],
        "v.tile_position_embd.gate": gate,
    }  # fmt: skip
    for part in ("pre", "post"):
        theirs = f"model.vision_model.{part}_tile_positional_embedding."
        found[f"v.{part}_tile_position_embd.weight"] = state[f"{theirs}embedding.weight"]
        found[f"v.{part}_tile_position_embd.gate"] = np.tanh(state[f"{theirs}gate"])
        for kind in ("weight", "bias"):
            found[f"v.{part}_ln.{kind}"] = state[f"model.vision_model.layernorm_{part}.{kind}"]
    layers = {
        **{f"model.vision_model.transformer.layers.{i}.": f"v.blk.{i}." for i in range(config.layers)},
        **{
            f"model.vision_model.global_transformer.layers.{i}.": f"v.global.blk.{i}."
            for i in range(config.global_layers)
        },
        **{f"model.language_model.layers.{i}.": f"blk.{i}." for i in range(config.text.layers)},
    }
    for theirs, ours in layers.items():
        for name, short in (_SEES if ours.startswith("v.") else _READS).items():
            for kind in ("weight", "bias"):
                if (values := state.get(f"{theirs}{name}.{kind}")) is not None:
                    if short in ("attn_q", "attn_k"):
                        text = config.text
                        text_heads = text.heads if short == "attn_q" else text.kv_heads
                        values = permuted(values, config.heads if ours.startswith("v.") else text_heads)
                    found[f"{ours}{short}.{kind}"] = values
        if ours.startswith("v.global"):
            found[f"{ours}attn_gate"] = np.tanh(state[f"{theirs}gate_attn"])
            found[f"{ours}ffn_gate"] = np.tanh(state[f"{theirs}gate_ffn"])
        for part in ("attn", "mlp"):
            if (values := state.get(f"{theirs}cross_attn_{part}_gate")) is not None:
                found[f"{ours}cross_attn_{part}_gate"] = values
    return found


@dataclass
class OllamasReading:
    """Vision model as `model_vision.go` computes it, except for exact GELUs.

    `masked`: padding attends to real patches and not to itself; Ollama has no mask. `rows_first`: grids of
    tiles are numbered by rows; Ollama counts columns first. `kept_before`: whether the input of
    a layer is kept, as in Ollama, or its output.
    """

    tensors: dict[str, torch.Tensor]
    config: TinyMllamaVision
    masked: bool = True
    rows_first: bool = True
    kept_before: bool = True

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        t = self.tensors
        return F.layer_norm(x, x.shape[-1:], t[f"{name}.weight"], t[f"{name}.bias"], 1e-5)

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def layer(self, x: torch.Tensor, name: str, hidden_from: torch.Tensor | None) -> torch.Tensor:
        heads = self.config.heads
        normed = self.norm(x, f"{name}.attn_norm")
        query, key, value = (
            self.linear(normed, f"{name}.attn_{part}").reshape(len(x), heads, -1).transpose(0, 1)
            for part in "qkv"
        )
        scores = query @ key.transpose(1, 2) / key.shape[-1] ** 0.5
        if hidden_from is not None:
            scores = scores.masked_fill(hidden_from, -torch.inf)
        mixed = (scores.softmax(dim=-1) @ value).transpose(0, 1).reshape(len(x), -1)
        x = x + self.linear(mixed, f"{name}.attn_output") * self.tensors.get(f"{name}.attn_gate", 1)
        inner = F.gelu(self.linear(self.norm(x, f"{name}.ffn_norm"), f"{name}.ffn_up"))
        return x + self.linear(inner, f"{name}.ffn_down") * self.tensors.get(f"{name}.ffn_gate", 1)

    def stages(self, pixels: torch.Tensor, grid: tuple[int, int]) -> dict[str, torch.Tensor]:
        """Return the stages for normalised tiles [tiles, 3, side, side] in a grid of rows and columns."""
        t, c = self.tensors, self.config
        wanted = grid if self.rows_first else grid[::-1]
        rank = grids(c.tiles).index(wanted) + 1
        real, width = len(pixels), c.hidden
        padded = torch.cat([pixels, torch.zeros(c.tiles - real, *pixels.shape[1:])])
        patches = F.conv2d(padded, t["v.patch_embd.weight"], stride=c.patch_size)
        x = patches.flatten(2).transpose(1, 2)  # [tiles, patches, hidden]
        x = (
            x
            + t["v.pre_tile_position_embd.weight"][rank].reshape(-1, 1, width)
            * t["v.pre_tile_position_embd.gate"]
        )
        x = torch.cat([t["v.class_embd"].expand(c.tiles, 1, width), x], dim=1)
        x = x + t["v.position_embd.weight"] * t["v.position_embd.gate"]
        places = t["v.tile_position_embd.weight"][rank].reshape(c.tiles, -1, width)
        x = self.norm(x + places * t["v.tile_position_embd.gate"], "v.pre_ln")
        found, positions = {"embedded": x}, x.shape[1]
        x = F.pad(x, (0, 0, 0, 8 - positions % 8))
        shown = torch.zeros(x.shape[:2], dtype=torch.bool)
        shown[:real, :positions] = True
        no_pixels = ~shown.reshape(-1)
        hidden_from = (no_pixels[:, None] & no_pixels) if self.masked else None
        x, kept = x.reshape(-1, width), []
        for index in range(c.layers):
            before, x = x, self.layer(x, f"v.blk.{index}", hidden_from)
            if index in c.kept:
                kept.append(before if self.kept_before else x)
        found["layers"] = x.reshape(c.tiles, -1, width)[:real, :positions]
        x = self.norm(x, "v.post_ln").reshape(c.tiles, -1, width)
        after = t["v.post_tile_position_embd.weight"][rank].reshape(-1, 1, width)
        x = (x + after * t["v.post_tile_position_embd.gate"]).reshape(-1, width)
        for index in range(c.global_layers):
            x = self.layer(x, f"v.global.blk.{index}", hidden_from)
        x = torch.cat([x, torch.stack(kept, dim=-1).flatten(1)], dim=1)  # interleaved number by number
        found["beside"] = x.reshape(c.tiles, -1, x.shape[1])[:real, :positions]
        found["projected"] = self.linear(found["beside"], "mm.0")
        return {name: value.flatten(0, 1) for name, value in found.items()}


@dataclass
class _Noted:
    """Part of a tower whose inputs and results are recorded."""

    inner: Any
    ops: Backend
    given: list[torch.Tensor]
    made: list[torch.Tensor]

    def __call__(self, x: Any) -> Any:
        result = self.inner(x)
        self.given.append(torch.from_numpy(self.ops.numpy(x).copy()))
        self.made.append(torch.from_numpy(self.ops.numpy(result).copy()))
        return result


@pytest.fixture(scope="module")
def config() -> TinyMllamaVision:
    return TinyMllamaVision(TinyMllama())


@pytest.fixture(scope="module")
def file(config: TinyMllamaVision, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File with the keys and tensors of Ollama's converter."""
    text = config.text
    keys = {
        "general.file_type": 0, "general.parameter_count": 1, "block_count": text.layers, "vocab_size": 288,
        "context_length": text.context, "embedding_length": text.hidden,
        "feed_forward_length": text.feed_forward, "attention.head_count": text.heads,
        "attention.head_count_kv": text.kv_heads, "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.cross_attention_layers": list(text.cross_layers), "rope.freq_base": text.rope_base,
        "rope.dimension_count": text.hidden // text.heads, "vision.block_count": config.layers,
        "vision.global.block_count": config.global_layers,
        "vision.intermediate_layers_indices": list(config.kept),
        "vision.embedding_length": config.hidden, "vision.feed_forward_length": config.feed_forward,
        "vision.attention.head_count": config.heads, "vision.attention.layer_norm_epsilon": 1e-5,
        "vision.image_size": config.image_size, "vision.patch_size": config.patch_size,
        "vision.max_num_tiles": config.tiles, "vision.num_channels": 3,
    }  # fmt: skip
    theirs, folder = original(config), tmp_path_factory.mktemp("mllama")
    ours = contents_of(config.write(folder, theirs).model)
    words = {key: value for key, value in ours.keys.items() if key.startswith("tokenizer.")}
    return Contents("mllama", keys | words, laid_out(theirs, config)).write(folder / "ollama.gguf")


def reading(file: Path, config: TinyMllamaVision, **choices: bool) -> OllamasReading:
    tensors = {name: torch.from_numpy(array) for name, array in contents_of(file).tensors.items()}
    return OllamasReading(tensors, config, **choices)


def shown(file: Path, config: TinyMllamaVision, image: PIL.Image.Image) -> tuple[Pair, Image, torch.Tensor]:
    """Return a picture as prepared for our tower, with its normalised tiles."""
    pair = Pair(load_model(file), original(config), config)
    (found,) = images_of(pair.inputs(pair.run(), "[img-0]", image))
    pixels = torch.from_numpy(found.pixels.pixels.astype(np.float32) / 255).permute(0, 3, 1, 2)
    mean, std = (torch.tensor(each).reshape(3, 1, 1) for each in (CLIP_MEAN, CLIP_STD))
    return pair, found, (pixels - mean) / std


SIZES = {"one tile": (40, 40), "two rows": (50, 100), "two columns": (100, 50), "four tiles": (110, 110)}


def test_our_converter_writes_the_same_tensors_as_ollamas(file: Path, config: TinyMllamaVision) -> None:
    ours = contents_of(config.write(file.parent, original(config)).model).tensors
    theirs = contents_of(file).tensors
    assert set(ours) == set(theirs)
    for name, array in ours.items():
        assert np.allclose(array.reshape(-1), theirs[name].reshape(-1), atol=1e-6), name


@pytest.mark.parametrize("size", SIZES, ids=lambda name: name.replace(" ", "-"))
def test_every_stage_of_the_tower_matches_ollamas_code(
    size: str, file: Path, config: TinyMllamaVision
) -> None:
    pair, image, pixels = shown(file, config, picture(3, *SIZES[size]))
    tower = pair.ours.vision
    names = ("first_norm", "norm", "projection")
    noted = {name: _Noted(getattr(tower, name), tower.ops, [], []) for name in names}
    for name, part in noted.items():
        setattr(tower, name, part)
    check_close(pair.ours, pair.encoded(image, slice_rows=7), noted["projection"].made[0])
    expected = reading(file, config).stages(pixels, image.pixels.grid)
    rows = len(expected["projected"])
    check_close(pair.ours, torch.cat(noted["first_norm"].made), expected["embedded"])
    check_close(pair.ours, noted["norm"].given[0][:rows], expected["layers"])
    check_close(pair.ours, noted["projection"].given[0], expected["beside"])
    check_close(pair.ours, noted["projection"].made[0], expected["projected"])


@pytest.mark.parametrize("choice", ["masked", "rows_first", "kept_before"])
def test_where_references_disagree_the_one_named_in_the_docs_is_followed(
    choice: str, file: Path, config: TinyMllamaVision
) -> None:
    pair, image, pixels = shown(file, config, picture(3, 100, 50))
    found = pair.encoded(image, slice_rows=7)
    check_close(pair.ours, found, reading(file, config).stages(pixels, image.pixels.grid)["projected"])
    other = reading(file, config, **{choice: False}).stages(pixels, image.pixels.grid)["projected"]
    assert (found - other).abs().max() > 0.01


def test_pictures_are_normalised_by_published_numbers_not_class_defaults(file: Path) -> None:
    from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil

    options = load_model(file).vision.options
    assert (options.mean, options.std) == (CLIP_MEAN, CLIP_STD)
    assert list(MllamaImageProcessorPil().image_mean) != list(CLIP_MEAN)


def test_text_before_the_first_picture_skips_the_cross_attention_layers(file: Path) -> None:
    """Ollama and transformers let it attend to a picture read in the same pass, unlike the authors' code."""
    config = TinyMllamaVision(TinyMllama())
    pair = Pair(load_model(file), original(config), config)
    scores = []
    for text in ("hello world once upon a time", "hello world once upon a time[img-0] is"):
        run = pair.run()
        run.submit_inputs(0, pair.inputs(run, text, picture(3)), prompt_logprobs=True, num_predict=1)
        run.finish()
        scores.append([logprob for _, logprob in run.scored(0)[1:6]])
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)
