"""The sizes of real vision towers, and the metadata and tensors of their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shapes import Floats, Tensors


@dataclass(frozen=True)
class Tower:
    """The contents of an mmproj file of random weights."""

    projector: str
    keys: Mapping[str, Any]  # below `clip.vision`, unless they have a prefix
    tensors: Callable[[int], Tensors]  # by full name, for the hidden size of a text model


def _norm(name: str, size: int) -> dict[str, Floats]:
    return {f"{name}.weight": Floats((size,)), f"{name}.bias": Floats((size,), 0.0)}


def _linear(name: str, out: int, size: int) -> dict[str, Floats | tuple[int, ...]]:
    return {f"{name}.weight": (out, size), f"{name}.bias": Floats((out,), 0.0)}


def _embedding(hidden: int, patch: int, places: int) -> dict[str, Floats | tuple[int, ...]]:
    return {
        "v.patch_embd.weight": (hidden, 3, patch, patch),
        "v.patch_embd.bias": Floats((hidden,), 0.0),
        "v.position_embd.weight": Floats((places, hidden), 0.0, 0.1),
    }


def _layer(name: str, hidden: int, feed_forward: int, joined: bool) -> dict[str, Floats | tuple[int, ...]]:
    inputs = {"attn_qkv": 3 * hidden} if joined else {f"attn_{letter}": hidden for letter in "qkv"}
    tensors: dict[str, Floats | tuple[int, ...]] = {}
    for part, out in inputs.items():
        tensors |= _linear(f"{name}.{part}", out, hidden)
    tensors |= _linear(f"{name}.attn_out", hidden, hidden)
    tensors |= _linear(f"{name}.ffn_up", feed_forward, hidden)
    tensors |= _linear(f"{name}.ffn_down", hidden, feed_forward)
    return tensors | _norm(f"{name}.ln1", hidden) | _norm(f"{name}.ln2", hidden)


def _keys(image: int, patch: int, hidden: int, feed_forward: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "image_size": image,
        "patch_size": patch,
        "embedding_length": hidden,
        "feed_forward_length": feed_forward,
        "block_count": layers,
        "attention.head_count": heads,
        "attention.layer_norm_epsilon": 1e-6,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "clip.use_gelu": True,
    }


def siglip(image: int, hidden: int, feed_forward: int, layers: int, heads: int, rows: int) -> Tower:
    """Return Gemma 3's tower, which merges its patches into rows x rows."""
    patch = 14
    side = image // patch

    def tensors(text_size: int) -> Tensors:
        found = _embedding(hidden, patch, side**2)
        for index in range(layers):
            found |= _layer(f"v.blk.{index}", hidden, feed_forward, False)
        return {
            **found,
            **_norm("v.post_ln", hidden),
            "mm.soft_emb_norm.weight": Floats((hidden,)),
            "mm.input_projection.weight": Floats((hidden, text_size), 0.0, hidden**-0.5),
        }

    keys = _keys(image, patch, hidden, feed_forward, layers, heads)
    return Tower("gemma3", keys | {"projector.scale_factor": side // rows}, tensors)


def clip(image: int, hidden: int, feed_forward: int, layers: int, heads: int) -> Tower:
    """Return LLaVA 1.5's tower, with all but the last layer of CLIP, which is not used."""
    patch = 14

    def tensors(text_size: int) -> Tensors:
        found = _embedding(hidden, patch, (image // patch) ** 2 + 1)
        del found["v.patch_embd.bias"]
        for index in range(layers - 1):
            found |= _layer(f"v.blk.{index}", hidden, feed_forward, False)
        return {
            **found,
            **_norm("v.pre_ln", hidden),
            "v.class_embd": Floats((hidden,), 0.0, 0.1),
            **_linear("mm.0", text_size, hidden),
            **_linear("mm.2", text_size, text_size),
        }

    keys = _keys(image, patch, hidden, feed_forward, layers - 1, heads)
    more = {"clip.use_gelu": False, "attention.layer_norm_epsilon": 1e-5}
    return Tower("mlp", keys | more, tensors)


def qwen3vl(hidden: int, feed_forward: int, layers: int, heads: int, deepstack: tuple[int, ...]) -> Tower:
    """Return Qwen3-VL's tower, whose layers `deepstack` feed the text model's first ones."""
    patch, side, merge = 16, 48, 2
    merged = hidden * merge**2

    def tensors(text_size: int) -> Tensors:
        found = _embedding(hidden, patch, side**2)
        found["v.patch_embd.weight.1"] = found["v.patch_embd.weight"]  # for the second frame of a video
        for index in range(layers):
            found |= _layer(f"v.blk.{index}", hidden, feed_forward, True)
        for index in deepstack:
            found |= _norm(f"v.deepstack.{index}.norm", merged)
            found |= _linear(f"v.deepstack.{index}.fc1", merged, merged)
            found |= _linear(f"v.deepstack.{index}.fc2", text_size, merged)
        return {
            **found,
            **_norm("v.post_ln", hidden),
            **_linear("mm.0", merged, merged),
            **_linear("mm.2", text_size, merged),
        }

    keys = _keys(side * patch, patch, hidden, feed_forward, layers, heads) | {
        "spatial_merge_size": merge,
        "is_deepstack_layers": [index in deepstack for index in range(layers)],
    }
    return Tower("qwen3vl_merger", keys, tensors)


TOWERS = {
    "siglip-400m": siglip(896, 1152, 4304, 27, 16, 16),  # Gemma 3
    "clip-l": clip(336, 1024, 4096, 24, 16),  # LLaVA 1.5
    "qwen3vl-2b": qwen3vl(1024, 4096, 24, 16, (5, 11, 17)),
}
