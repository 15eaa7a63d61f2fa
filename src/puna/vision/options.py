"""What a file says of its vision tower, checked against its tensors before anything is planned by it."""

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

#: How names of tensors begin that belong to what looks at images.
OF_IMAGES: Final = ("v.", "s.", "mm.", "model.image_newline")
#: And those of what listens, which is not loaded.
OF_SOUND: Final = ("a.", "mm.a.")
#: Patches of one image beyond which a file is damaged: eight times those of the largest published models.
_MAX_PATCHES: Final = 1 << 17
_LAYER = re.compile(r"v\.blk\.(\d{1,9})\.")


@dataclass(frozen=True, kw_only=True)
class VisionOptions:
    """What all towers have. Sizes are in pixels, unless stated."""

    image_size: int
    patch_size: int
    hidden_size: int  # numbers of a patch
    text_size: int  # numbers of what the text model reads
    norm_eps: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    layers: tuple[VisionLayerOptions, ...]
    channels: int = 3

    @property
    def side(self) -> int:
        """Patches of an image's side."""
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
        **more: Any,
    ) -> Self:
        """From the metadata of `file`, the arguments standing for what it does not say.

        `feed_forward` are names of the tensor with a row for each number inside a feed-forward network.
        Raises `ModelError` that names the key and its value, and `UnsupportedModelError`.
        """
        count, hidden = _layers(file), required(file, "vision.embedding_length")
        heads = required(file, first_of(file, "vision.attention.head_count", "vision.head_count"))
        image_size = required(file, "vision.image_size", image_size)
        patch_size = required(file, "vision.patch_size", patch_size)
        if hidden % heads:
            complaint = f"is {heads}, which does not divide the {hidden} numbers of a patch"
            raise invalid(file, "vision.attention.head_count", complaint)
        if not patch_size <= image_size or (image_size // patch_size) ** 2 > _MAX_PATCHES:
            raise invalid(file, "vision.image_size", f"is {image_size}, with patches of {patch_size}")
        if (channels := scalar(file, "vision.num_channels", 3) or 3) != 3:  # Ollama writes 0 for none
            raise UnsupportedModelError(
                f"{file.path}: images of {channels} channels are not supported, only of 3"
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
            **more,
        )


@dataclass(frozen=True, kw_only=True)
class MergedOptions(VisionOptions):
    """Of towers that make one row of a square of patches."""

    merge: int  # patches of the side of what becomes one row

    @property
    def merged_size(self) -> int:
        """Numbers of the patches that become one row."""
        return self.hidden_size * self.merge**2

    @property
    def unit(self) -> int:
        """Pixels of the side of what becomes one row."""
        return self.patch_size * self.merge


@dataclass(frozen=True, kw_only=True)
class TileOptions(MergedOptions):
    """Of those that read pictures of one size, which may be parts of a larger one."""

    @property
    def tile_rows(self) -> int:
        """Rows that become of one such picture."""
        return (self.side // self.merge) ** 2


def merge_factor(file: GGUFFile, options: VisionOptions, default: int = 2) -> int:
    """Patches of the side of what becomes one row. Raises `ModelError` where an image is not that many."""
    key = "vision.projector.scale_factor"
    merge = required(file, key, default)
    if options.side % merge:
        raise invalid(file, key, f"is {merge}, which does not divide the {options.side} patches of a side")
    return merge


def with_named_layers(file: GGUFFile, options: VisionOptions) -> dict[str, Any]:
    """The fields of `options`, its layers knowing which way round their tensors are named."""
    first, down = options.layers[0], file.tensors.get("v.blk.0.ffn_down.weight")
    if first.feed_forward_size != options.hidden_size or down is None or down.shape[0] == options.hidden_size:
        return vars(options)
    layer = replace(first, feed_forward_size=down.shape[0], swapped=True)
    return {**vars(options), "layers": (layer,) * len(options.layers)}


def with_clip_layers(file: GGUFFile, options: VisionOptions) -> dict[str, Any]:
    """The fields of `options` with layers of CLIP, which say how they activate and are named."""
    kind = ExactLayer if flag(file, "use_gelu", False) else QuickLayer
    named = with_named_layers(file, options)
    return named | {"layers": tuple(ClipLayerOptions(**vars(layer), kind=kind) for layer in named["layers"])}


def _layers(file: GGUFFile) -> int:
    """The number of layers, as many as there are tensors of."""
    key, count = "vision.block_count", required(file, "vision.block_count")
    last = max((int(found[1]) for found in map(_LAYER.match, file.tensors) if found), default=-1)
    if count < last + 1:
        raise invalid(file, key, f"is {count}, but there are tensors of layer {last}")
    if count > last + 1:
        raise invalid(file, key, f"is {count}, but there are only tensors of {last + 1} layers")
    return count


def three_numbers(file: GGUFFile, key: str, default: Sequence[float]) -> tuple[float, ...]:
    values: Any = file.get(key)
    if values is None:
        return tuple(default)
    if isinstance(values, str | int | float) or len(values) != 3:
        raise invalid(file, key, f"should be three numbers, but is {shown(values)}")
    numbers = tuple(map(float, values))
    if not all(abs(number) < 1e3 for number in numbers) or (key.endswith("std") and min(numbers) < 1e-3):
        raise invalid(file, key, f"should be means or deviations of brightness, but is {shown(values)}")
    return numbers
