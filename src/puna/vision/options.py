"""Options of vision towers, read from a file's metadata and checked against its tensors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self

from puna.errors import ModelError, UnsupportedModelError, shown
from puna.gguf.metadata import first_of, flag, invalid, positive, required, scalar
from puna.vision.layers.layers import ClipLayerOptions, ExactLayer, QuickLayer, VisionLayerOptions
from puna.vision.pixels import HALVES

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: Prefixes of the tensors of a vision tower.
OF_IMAGES: Final = ("v.", "s.", "mm.", "model.image_newline")
#: Prefixes of the tensors of an audio tower.
OF_SOUND: Final = ("a.", "mm.a.")
#: Patches of an image beyond which a file is damaged: eight times the largest published models'.
_MAX_PATCHES: Final = 1 << 17
_LAYER = re.compile(r"v\.blk\.(\d{1,9})\.")


@dataclass(frozen=True, kw_only=True)
class VisionOptions:
    """Options common to all towers. Sizes are in pixels unless stated otherwise."""

    image_size: int
    patch_size: int
    hidden_size: int  # values of a patch
    text_size: int  # values of a row for the text model
    norm_eps: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    layers: tuple[VisionLayerOptions, ...]
    channels: int = 3

    @property
    def side(self) -> int:
        """Patches along an image's side."""
        return self.image_size // self.patch_size

    @property
    def patches(self) -> int:
        return self.side**2

    @property
    def heads(self) -> int:
        return self.layers[0].heads

    @property
    def head_dim(self) -> int:
        return self.layers[0].head_dim

    @classmethod
    def read(
        cls,
        file: GGUFFile,
        text_size: int,
        *,
        image_size: int = 0,
        patch_size: int = 14,
        norm_eps: float = 1e-6,
        mean: Sequence[float] = HALVES,
        std: Sequence[float] = HALVES,
        feed_forward: Sequence[str] = ("v.blk.0.mlp.fc1.weight", "v.blk.0.ffn_up.weight"),
    ) -> Self:
        """Read the options from the metadata of `file`; the arguments are defaults.

        `feed_forward` are alternative names of the tensor with one row per hidden unit of a feed-forward
        network. Raises `ModelError` that names the key and its value, and `UnsupportedModelError`.
        """
        count, hidden = _layers(file), required(file, "vision.embedding_length")
        heads = required(file, first_of(file, "vision.attention.head_count", "vision.head_count"))
        # 0 means that pictures have any size.
        any_size = file.get("vision.image_size") == 0 and image_size > 0
        image_size = image_size if any_size else required(file, "vision.image_size", image_size)
        patch_size = required(file, "vision.patch_size", patch_size)
        if hidden % heads:
            complaint = f"is {heads}, which does not divide the {hidden} values of a patch"
            raise invalid(file, "vision.attention.head_count", complaint)
        if not patch_size <= image_size or (image_size // patch_size) ** 2 > _MAX_PATCHES:
            raise invalid(file, "vision.image_size", f"is {image_size}, with patches of {patch_size}")
        if (channels := scalar(file, "vision.num_channels", 3) or 3) != 3:  # Ollama writes 0 if it is unknown
            raise UnsupportedModelError(
                f"{file.path}: images with {channels} channels are not supported, only with 3"
            )
        found = next((file.tensors[name] for name in feed_forward if name in file.tensors), None)
        if found is None or len(found.shape) != 2:
            raise ModelError(f"{file.path}: tensor '{feed_forward[0]}' is missing")
        eps_key = first_of(
            file,
            "vision.attention.layer_norm_epsilon",
            "vision.attention.layer_norm_rms_epsilon",
            "vision.layer_norm_epsilon",
        )
        eps = positive(file, eps_key, norm_eps)
        layer = VisionLayerOptions(
            hidden_size=hidden, feed_forward_size=found.shape[0], heads=heads, norm_eps=eps,
            joined="v.blk.0.attn_qkv.weight" in file.tensors,
        )  # fmt: skip
        return cls(
            image_size=image_size,
            patch_size=patch_size,
            hidden_size=hidden,
            text_size=text_size,
            norm_eps=eps,
            mean=three_numbers(file, "vision.image_mean", mean),
            std=three_numbers(file, "vision.image_std", std),
            layers=(layer,) * count,
        )


@dataclass(frozen=True, kw_only=True)
class MergedOptions(VisionOptions):
    """Options of towers that merge a square of patches into one row."""

    merge: int  # patches per row along a side

    @property
    def merged_size(self) -> int:
        """Values of the patches merged into one row."""
        return self.hidden_size * self.merge**2

    @property
    def unit(self) -> int:
        """Pixels per row along a side."""
        return self.patch_size * self.merge


@dataclass(frozen=True, kw_only=True)
class TileOptions(MergedOptions):
    """Options of towers that read pictures or tiles of one fixed size."""

    @property
    def tile_rows(self) -> int:
        """Rows of one tile."""
        return (self.side // self.merge) ** 2


def merge_factor(file: GGUFFile, options: VisionOptions, default: int = 2) -> int:
    """Return the patches per row along a side. Raises `ModelError` unless it divides the image's side."""
    key = "vision.projector.scale_factor"
    merge = required(file, key, default)
    if options.side % merge:
        raise invalid(file, key, f"is {merge}, which does not divide the {options.side} patches of a side")
    return merge


def with_named_layers(file: GGUFFile, options: VisionOptions) -> dict[str, Any]:
    """Return the fields of `options`, with layers that know whether up and down are swapped."""
    first, down = options.layers[0], file.tensors.get("v.blk.0.ffn_down.weight")
    if first.feed_forward_size != options.hidden_size or down is None or down.shape[0] == options.hidden_size:
        return vars(options)
    layer = replace(first, feed_forward_size=down.shape[0], swapped=True)
    return {**vars(options), "layers": (layer,) * len(options.layers)}


def with_clip_layers(file: GGUFFile, options: VisionOptions) -> dict[str, Any]:
    """Return the fields of `options` with CLIP's layers, by their activation and tensor names."""
    kind = ExactLayer if flag(file, "use_gelu", False) else QuickLayer
    named = with_named_layers(file, options)
    return named | {"layers": tuple(ClipLayerOptions(**vars(layer), kind=kind) for layer in named["layers"])}


def _layers(file: GGUFFile) -> int:
    """Return the number of layers, checked against the tensors."""
    key, count = "vision.block_count", required(file, "vision.block_count")
    last = max((int(found[1]) for found in map(_LAYER.match, file.tensors) if found), default=-1)
    if count < last + 1:
        raise invalid(file, key, f"is {count}, but there are tensors of layer {last}")
    if count > last + 1:
        raise invalid(file, key, f"is {count}, but there are tensors of only {last + 1} layers")
    return count


def three_numbers(file: GGUFFile, key: str, default: Sequence[float]) -> tuple[float, ...]:
    values: Any = file.get(key)
    if values is None:
        return tuple(default)
    if isinstance(values, str | int | float) or len(values) != 3:
        raise invalid(file, key, f"should be three numbers, but is {shown(values)}")
    numbers = tuple(map(float, values))
    if not all(abs(number) < 1e3 for number in numbers) or (key.endswith("std") and min(numbers) < 1e-3):
        raise invalid(file, key, f"should be means or deviations of pixel values, but is {shown(values)}")
    return numbers
