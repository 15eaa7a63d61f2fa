"""Models of real shapes with random weights, for measuring speed.

Weights are random blocks of the real quantised types, scaled so that activations have a normal magnitude. The
output of such a model is meaningless, but its speed is that of the real one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from shapes import SHAPES, Floats, Shape
from towers import TOWERS

from puna.gguf import FileType, GGMLType, GGUFWriter

Q4_K, Q5_K, Q6_K = GGMLType.Q4_K, GGMLType.Q5_K, GGMLType.Q6_K
Q8_0, Q4_0, F16 = GGMLType.Q8_0, GGMLType.Q4_0, GGMLType.F16
IQ4_XS, MXFP4 = GGMLType.IQ4_XS, GGMLType.MXFP4
#: Folder of the created models.
MODELS = Path(__file__).resolve().parents[1] / "build" / "bench-models"
# Types of grid points, with the standard deviation of random values with factor 1.
POINTS = {
    GGMLType.IQ1_S: 7.4,
    GGMLType.IQ2_XXS: 51.0,
    GGMLType.IQ2_XS: 51.0,
    GGMLType.IQ2_S: 51.0,
    GGMLType.IQ3_XXS: 148.0,
    GGMLType.IQ3_S: 157.0,
}


@dataclass(frozen=True)
class Mix:
    """The tensor types that llama.cpp's quantiser chooses for a file type."""

    label: FileType
    most: GGMLType  # most matrices
    better: GGMLType  # matrices that get more bits
    joined: GGMLType  # joined queries, keys and values
    head: GGMLType  # the embedding, which is also the output matrix


MIXES = {
    "q4_k_m": Mix(FileType.Q4_K_M, Q4_K, Q6_K, Q5_K, Q6_K),
    "q5_k_m": Mix(FileType.Q5_K_M, Q5_K, Q6_K, Q6_K, Q6_K),
    "q6_k": Mix(FileType.Q6_K, Q6_K, Q6_K, Q6_K, Q6_K),
    "q4_0": Mix(FileType.Q4_0, Q4_0, Q4_0, Q4_0, Q6_K),
    "q8_0": Mix(FileType.Q8_0, Q8_0, Q8_0, Q8_0, Q8_0),
    "iq4_xs": Mix(FileType.IQ4_XS, IQ4_XS, IQ4_XS, IQ4_XS, Q6_K),
    "iq1_s": Mix(FileType.IQ1_S, GGMLType.IQ1_S, GGMLType.IQ1_S, GGMLType.IQ1_S, Q6_K),
    "iq2_xxs": Mix(FileType.IQ2_XXS, GGMLType.IQ2_XXS, GGMLType.IQ2_XXS, GGMLType.IQ2_XXS, Q6_K),
    "iq3_s": Mix(FileType.IQ3_S, GGMLType.IQ3_S, GGMLType.IQ3_S, GGMLType.IQ3_S, Q6_K),
    "mxfp4": Mix(FileType.MXFP4, MXFP4, MXFP4, MXFP4, Q8_0),
    "f16": Mix(FileType.F16, F16, F16, F16, F16),
}


def kind_of(tensor: str, mix: str, layer: int, layers: int) -> GGMLType:
    """Return the type that llama.cpp's quantiser chooses in `mix` for a matrix of one of `layers`."""
    if tensor == "attn_qkv.weight":
        return MIXES[mix].joined
    if tensor not in ("attn_v.weight", "ffn_down.weight", "ffn_down_exps.weight"):
        return MIXES[mix].most
    # More bits for the first and last eighth of the layers and for every third of the others.
    more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    return MIXES[mix].better if more else MIXES[mix].most


def tensors_of(shape: Shape, mix: str) -> Iterator[tuple[str, Floats | tuple[int, ...], GGMLType]]:
    """Yield the name, the shape and the type of each tensor that a file of `shape` has in `mix`.

    Q8_0 replaces a type whose blocks a matrix's rows do not fill, and MXFP4 beside experts, as published.
    """

    def fitting(of: tuple[int, ...], kind: GGMLType) -> GGMLType:
        return Q8_0 if of[-1] % kind.block_size else kind

    table, chosen = (shape.vocab, shape.hidden), MIXES[mix]
    yield "token_embd.weight", table, fitting(table, chosen.most if shape.untied else chosen.head)
    yield "output_norm.weight", Floats((shape.hidden,)), GGMLType.F32
    if shape.untied:
        yield "output.weight", table, fitting(table, chosen.head)
    having = Counter(tensor for tensors in shape.layers for tensor in tensors)
    mixture = any("_exps" in tensor for tensor in having)
    seen: Counter[str] = Counter()
    for layer, tensors in enumerate(shape.layers):
        for tensor, of in tensors.items():
            name = f"blk.{layer}.{tensor}"
            if isinstance(of, Floats):
                yield name, of, GGMLType.F32
            else:
                kind = kind_of(tensor, mix, seen[tensor], having[tensor])
                beside = mixture and "_exps" not in tensor and kind is MXFP4
                yield name, of, Q8_0 if beside else fitting(of, kind)
            seen[tensor] += 1


def random_model(name: str, mix: str) -> Path:
    """Return the GGUF file of shape `name` quantised as `mix`, created on first use."""
    path = MODELS / f"random-{name}-{mix}.gguf"
    if path.exists():
        return path
    MODELS.mkdir(parents=True, exist_ok=True)
    shape, dice = SHAPES[name], np.random.default_rng(1)
    writer = GGUFWriter(path, shape.architecture)
    writer.add("general.name", f"random {name} {mix}")
    writer.add("general.file_type", MIXES[mix].label.value)
    writer.add("block_count", len(shape.layers))
    writer.add("context_length", 131072)
    writer.add("embedding_length", shape.hidden)
    writer.add("vocab_size", shape.vocab)
    for key, value in shape.keys.items():
        writer.add(key, value)
    _add_vocabulary(writer, shape.vocab, shape.control)
    for tensor, of, kind in tensors_of(shape, mix):
        if isinstance(of, Floats):
            writer.add_tensor(tensor, random_floats(dice, of))
        else:
            _add(writer, dice, tensor, of, kind)
    writer.write()
    return path


def random_tower(name: str, kind: GGMLType, text_size: int) -> Path:
    """Return the mmproj file of tower `name` with matrices of type `kind`, created on first use.

    Matrices with rows that do not fill the type's blocks are F16, as with llama.cpp's converter.
    """
    path = MODELS / f"random-{name}-for-{text_size}-{kind.name.lower()}.gguf"
    if path.exists():
        return path
    MODELS.mkdir(parents=True, exist_ok=True)
    tower, dice = TOWERS[name], np.random.default_rng(1)
    writer = GGUFWriter(path, "clip")
    writer.add("general.name", f"random {name}")
    writer.add("general.type", "mmproj")
    writer.add("clip.has_vision_encoder", True)
    writer.add("clip.projector_type", tower.projector)
    for key, value in {**tower.keys, "projection_dim": text_size}.items():
        writer.add(key if key.startswith("clip.") else f"clip.vision.{key}", value)
    for tensor, of in tower.tensors(text_size).items():
        if isinstance(of, Floats):
            writer.add_tensor(tensor, random_floats(dice, of))
        else:
            fills = of[-1] % kind.block_size == 0
            size = int(np.prod(of[1:]))
            chosen = kind if fills else F16
            writer.add_raw_tensor(
                tensor, random_blocks(dice, chosen, of[0] * size, 0.5 / size**0.5), of, chosen
            )
    writer.write()
    return path


def random_floats(dice: np.random.Generator, of: Floats) -> np.ndarray:
    return of.mean + np.float32(of.deviation) * dice.standard_normal(of.shape, dtype=np.float32)


def _add(
    writer: GGUFWriter, dice: np.random.Generator, name: str, shape: tuple[int, ...], kind: GGMLType
) -> None:
    blocks = random_blocks(dice, kind, int(np.prod(shape)), 0.5 / shape[-1] ** 0.5)
    writer.add_raw_tensor(name, blocks, shape, kind)


def random_blocks(dice: np.random.Generator, kind: GGMLType, count: int, spread: float) -> np.ndarray:
    """Return the bytes of `count` values of type `kind` with a standard deviation of about `spread`."""
    if kind is F16:
        return (dice.standard_normal(count, dtype=np.float32) * spread).astype(np.float16)
    blocks = dice.integers(0, 256, (count // kind.block_size, kind.type_size), dtype=np.uint8)

    def set_half(offset: int, value: float) -> None:
        blocks[:, offset : offset + 2] = np.array([value], np.float16).view(np.uint8)

    # Random codes are uniform: the standard deviation is 74 for 8 bits, 18 for 6, 4.6 for 4; ~37 for scales.
    if kind is Q8_0:
        set_half(0, spread / 74)
    elif kind is Q4_0:
        set_half(0, spread / 4.6)
    elif kind is Q6_K:
        blocks[:, 192:208] = dice.integers(-64, 64, (len(blocks), 16), dtype=np.int8).view(np.uint8)
        set_half(208, spread / (18 * 37))
    elif kind is Q4_K:
        set_half(0, spread / (4.6 * 37))
        set_half(2, 7.5 * spread / (4.6 * 37))
    elif kind is Q5_K:
        set_half(0, spread / (9.2 * 37))
        set_half(2, 15.5 * spread / (9.2 * 37))
    elif kind is IQ4_XS:  # levels with a standard deviation of 73, and signed 6-bit scales
        set_half(0, spread / (73 * 18))
    elif kind in POINTS:
        set_half(0, spread / POINTS[kind])
    elif kind is MXFP4:  # scales are powers of two, biased by 128 because levels are stored doubled
        blocks[:, 0] = 128 + round(np.log2(spread / 5.9))
    else:
        raise ValueError(f"no random blocks of {kind.name}")
    return blocks


def _add_vocabulary(writer: GGUFWriter, size: int, control: Sequence[str] = ()) -> None:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    control = (*control, "<|begin|>", "<|end|>")
    words = (f"tok{i}" for i in range(size - len(alphabet) - 1 - len(control)))
    tokens = [*alphabet, "to", *words, *control]
    writer.add("tokenizer.ggml.model", "gpt2")
    writer.add("tokenizer.ggml.pre", "gpt-2")
    writer.add("tokenizer.ggml.tokens", tokens)
    writer.add("tokenizer.ggml.token_type", [1] * (size - len(control)) + [3] * len(control))
    writer.add("tokenizer.ggml.merges", ["t o"])
    writer.add("tokenizer.ggml.bos_token_id", size - 2)
    writer.add("tokenizer.ggml.eos_token_id", size - 1)
