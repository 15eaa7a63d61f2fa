"""Base of tiny random vision models: files, names, random weights, pixels for transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from puna.batch import Image
from puna.convert import convert, convert_tower
from puna.gguf import FileType, GGMLType, GGUFWriter
from puna.vision.options import VisionOptions
from puna.vision.pixels import CLIP_MEAN, CLIP_STD, normalised
from tests.convert.checkpoints import save_tokenizer, saved
from tests.tiny.converted import contents_of, converted, holds
from tests.tiny.llama import CHATML, TinyLlama, add_tokenizer, vocabulary

#: Stand-in for a part of an image in transformers' input: no token of any tiny vocabulary.
PART = 5000

#: Width and height of the pictures read so far, by the digests of their images.
SHOWN: dict[int, tuple[int, int]] = {}

#: Normalisation of pictures, as in preprocessor_config.json.
AS_IS = {"image_mean": [0.0] * 3, "image_std": [1.0] * 3}
HALVES = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
CLIPS = {"image_mean": list(CLIP_MEAN), "image_std": list(CLIP_STD)}

Tensors = dict[str, np.ndarray]


@dataclass
class Layout:
    """Layout of files: one file, as in Ollama, or the tower in its own file, as in llama.cpp."""

    model: Path
    projector: Path | None = None


def randomise(model: Any, seed: int) -> Any:
    """Set random weights of a realistic size; norms are near 1, or near 0 where 1 is added."""
    torch.default_generator.manual_seed(seed)
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
                inputs = parameter.shape[-1] if ".experts." in name else parameter[0].numel()
                parameter.copy_(random / inputs**0.5)
    return model


def renamed(state: Tensors, names: dict[str, str], theirs: str, ours: str) -> Tensors:
    """Return the tensors with prefix `theirs`, renamed by `names`, with prefix `ours`."""
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
    matrices: GGMLType = GGMLType.F32,
) -> Path:
    """Write a file with `metadata` (without the architecture's name); with `markers` it has a tokenizer.

    Matrices have the type `matrices` if it holds their rows.
    """
    writer = GGUFWriter(path, architecture)
    for key, value in metadata.items():
        if value is not None:
            writer.add(key if key.startswith("general.") else f"{architecture}.{key}", value)
    if markers is not None:
        add_tokenizer(writer, chat_template, markers=markers)
    for name, array in tensors.items():
        kind = matrices if holds(matrices, array) else GGMLType.F32
        writer.add_tensor(name, np.ascontiguousarray(array), kind)
    writer.write()
    return path


def state_of(model: Any) -> Tensors:
    return {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}


def channels_first(options: VisionOptions, image: Image) -> torch.Tensor:
    """Return the normalised pixels [tiles, 3, height, width] of an image."""
    tiles = np.ascontiguousarray(image.pixels.pixels.transpose(0, 3, 1, 2))
    flat = normalised(tiles.reshape(len(tiles), -1), options.mean, options.std)
    return torch.from_numpy(flat.reshape(tiles.shape))


def views(options: VisionOptions, images: Sequence[Image]) -> dict[str, Any]:
    """Return the whole of each image and all tiles as transformers' processors do."""

    def shown(pixels: np.ndarray) -> torch.Tensor:
        first = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
        flat = normalised(first.reshape(len(first), -1), options.mean, options.std)
        return torch.from_numpy(flat.reshape(first.shape))

    each = [image.pixels for image in images]
    tiles = [shown(one.pixels) for one in each if len(one.pixels)]
    return {
        "pixel_values": torch.cat([shown(one.overview[None]) for one in each]),
        "pixel_values_local": torch.cat(tiles) if tiles else None,
        "num_local_patches": [len(one.pixels) for one in each],
    }


def save(folder: Path, model: Any, markers: Sequence[str], pictures: dict[str, Any]) -> Path:
    """Save the checkpoint of `model` in `folder`; return the folder."""
    save_tokenizer(saved(folder, model, tokenizer=False), markers=markers)
    (folder / "preprocessor_config.json").write_text(json.dumps(pictures))
    return folder


def converted_apart(
    folder: Path, checkpoint: Path, sized: dict[str, Any], matrices: GGMLType = GGMLType.F32
) -> Layout:
    """Return our conversion of a checkpoint; its tower also has the keys `sized`."""
    layout = Layout(folder / "text.gguf", folder / "mmproj.gguf")
    convert(checkpoint, layout.model, FileType.F32)
    assert layout.projector is not None
    assert convert_tower(checkpoint, folder / "tower.gguf", FileType.F32)
    tower = contents_of(folder / "tower.gguf")
    tower.set(sized)
    tower.write(layout.projector, matrices)
    return layout


@dataclass
class WithLlama:
    """Base of tiny vision models whose text model is nearly a Llama."""

    text: TinyLlama
    hidden: int = 48
    layers: int = 2
    heads: int = 4
    feed_forward: int = 80
    image_size: int = 56
    patch_size: int = 14
    seed: int = 0
    matrices: GGMLType = GGMLType.F32

    architecture: ClassVar[str] = ""  # in a single file, if not our converter's
    markers: ClassVar[tuple[str, ...]] = ()

    @property
    def vocab(self) -> int:
        """Size of the vocabulary: text tokens with markers, then stand-ins for parts of images."""
        return len(vocabulary()) + len(self.markers) + 1

    @property
    def pictures(self) -> dict[str, Any]:
        """Settings of preprocessor_config.json."""
        return HALVES

    @property
    def sized(self) -> dict[str, Any]:
        """Keys of a tower that tiny models need and models of usual size do not."""
        return {}

    @property
    def part_id(self) -> int:
        return self.vocab - 1

    def ids(self, tokens: list[int]) -> torch.Tensor:
        """Return [1, tokens] with transformers' tokens for parts of images."""
        return torch.tensor([[self.part_id if token == PART else token for token in tokens]])

    def sizes(self) -> dict[str, Any]:
        """Return the text's sizes as Hugging Face names them."""
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
        """Metadata of the text in a single file, besides our converter's."""
        return {}

    def vision_metadata(self) -> dict[str, Any]:
        return {
            "vision.block_count": self.layers,
            "vision.embedding_length": self.hidden,
            "vision.attention.head_count": self.heads,
            "vision.feed_forward_length": self.feed_forward,
            "vision.image_size": self.image_size,
            "vision.patch_size": self.patch_size,
        }

    def save(self, folder: Path, model: Any) -> Path:
        return save(folder, model, [*self.markers, "<|part|>"], self.pictures)

    def write(self, folder: Path, model: Any, *, apart: bool = False) -> Layout:
        """Write one file in Ollama's layout, or our conversion with the tower `apart`."""
        if apart:
            return converted_apart(folder, self.save(folder / "checkpoint", model), self.sized, self.matrices)
        found = converted(model, self.save)
        found.architecture = self.architecture or found.architecture
        found.set(self.metadata() | self.vision_metadata())
        found.tensors = self.text_tensors(found.tensors) | self.tower(state_of(model))
        return Layout(found.write(folder / "one.gguf", self.matrices))

    def text_tensors(self, tensors: Tensors) -> Tensors:
        """Return our converter's text tensors in the layout of a single file."""
        return tensors

    def tower(self, state: Tensors) -> Tensors:
        """Return the tower's tensors in the layout of a single file."""
        raise NotImplementedError
