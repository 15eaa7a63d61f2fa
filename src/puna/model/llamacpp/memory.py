"""Estimate of the memory of a model run by llama.cpp, from its file alone.

It counts weights as stored, keys and values of every layer, states of recurrent layers by the sizes the file
states, and the results of a pass. Memory on a GPU is not counted; llama.cpp reports whether it suffices.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from puna.gguf import GGMLType, StringArray
from puna.gguf.metadata import flag, invalid, per_layer, required, scalar
from puna.model.llamacpp.bindings import bindings
from puna.model.memory import MemoryForecast, MemoryTable, PartMemory, layer_name, tokenizer_bytes

if TYPE_CHECKING:
    from puna.gguf import GGUFFile
    from puna.kvcache.types import KVTypes
    from puna.options import Placement

#: Memory of llama.cpp itself: libraries, graphs, and scratch memory of their nodes.
_PROCESS_BYTES: Final = 64 << 20
_FLOAT_BYTES: Final = 4
#: Results of a layer alive at once, of the hidden and of the feed-forward size.
_HIDDEN_ROWS, _FEED_FORWARD_ROWS = 8, 2
_MAX_LAYERS: Final = 4096
_LAYER = re.compile(r"(?:enc\.|dec\.)?blk\.(\d{1,9})\.")


@dataclass(frozen=True)
class LayerSizes:
    """Bytes that a layer remembers."""

    position: int = 0  # per position: keys and values
    sequence: int = 0  # per sequence: a recurrent state

    def bytes(self, sequences: int, capacity: int) -> int:
        return self.position * capacity + self.sequence * sequences


class LlamaCppForecast(MemoryForecast):
    """Estimate for the model in an open file. Raises `ModelError`."""

    def __init__(self, file: GGUFFile, types: KVTypes, placement: Placement) -> None:
        super().__init__(file)
        self.layers = _layers(file, types)
        #: Whether it is an encoder, which reads a text in one pass.
        self.whole = not flag(file, "attention.causal", True)
        self._hidden = scalar(file, "embedding_length", 0)
        feed_forward = file.get("feed_forward_length", 0)
        sizes = [feed_forward] if isinstance(feed_forward, int) else list(feed_forward or [0])
        self._feed_forward = max((size for size in sizes if isinstance(size, int)), default=0)
        tokens = file.get("tokenizer.ggml.tokens")
        self._vocab = len(tokens) if isinstance(tokens, StringArray) else 0
        self._weights: dict[int | str, int] = {}
        for name, tensor in file.tensors.items():
            layer = _LAYER.match(name)
            part = int(layer[1]) if layer else ("input" if name.startswith("token_embd") else "output")
            self._weights[part] = self._weights.get(part, 0) + tensor.nbytes
        self.offloaded = _offloaded(len(self.layers), placement)

    @property
    def weight_bytes(self) -> int:
        return sum(self._weights.values())

    @property
    def vram_bytes(self) -> int:
        """Bytes of weights on GPUs."""
        parts = [part for part in self._weights if self._device(part) == "GPU"]
        return sum(self._weights[part] for part in parts)

    def table(self, *, context: int, parallel: int, batch: int) -> MemoryTable:
        context = min(context, self.trained_context or context)
        batch = (context if self.whole else min(batch, context)) if context else batch
        capacity = context * parallel
        parts = [
            PartMemory(
                layer_name(i),
                self._device(i),
                self._weights.get(i, 0),
                size.bytes(parallel if context else 0, capacity),
            )
            for i, size in self.layers.items()
        ]
        parts.insert(0, PartMemory("input", "CPU", self._weights.get("input", 0), 0))
        parts.append(PartMemory("output", self._device("output"), self._weights.get("output", 0), 0))
        row = self._vocab + _HIDDEN_ROWS * self._hidden + _FEED_FORWARD_ROWS * self._feed_forward
        return MemoryTable(
            context=context,
            parallel=parallel,
            batch=batch,
            parts=tuple(parts),
            activations=_FLOAT_BYTES * batch * row,
            tokenizer=tokenizer_bytes(self._vocab),
            process=_PROCESS_BYTES,
        )

    def _device(self, part: int | str) -> str:
        """Return the device of a part: the GPU has the last layers, and the output if it has them all."""
        if part == "input":
            return "CPU"
        place = len(self.layers) if part == "output" else int(part)
        return "GPU" if place >= len(self.layers) + 1 - self.offloaded else "CPU"


def _offloaded(layers: int, placement: Placement) -> int:
    """Return the number of layers on GPUs, counting the output as one."""
    if placement.num_gpu == 0 or not bindings().llama_supports_gpu_offload():
        return 0
    return layers + 1 if placement.num_gpu < 0 else min(placement.num_gpu, layers + 1)


def _layers(file: GGUFFile, types: KVTypes) -> dict[int, LayerSizes]:
    count = required(file, "block_count")
    if count > _MAX_LAYERS:
        raise invalid(file, "block_count", f"is {count}, and no model has more than {_MAX_LAYERS} layers")
    heads = per_layer(file, "attention.head_count", count, default=0)
    kv_heads = per_layer(file, "attention.head_count_kv", count, default=heads)
    hidden = scalar(file, "embedding_length", 0)
    state = _state_bytes(file, hidden)
    sizes = {}
    for layer in range(count):
        width = hidden // heads[layer] if heads[layer] else 0
        keys = kv_heads[layer] * scalar(file, "attention.key_length", width)
        values = kv_heads[layer] * scalar(file, "attention.value_length", width)
        position = _bytes(types.keys, keys) + _bytes(types.values, values)
        sizes[layer] = LayerSizes(position, state)
    return sizes


def _state_bytes(file: GGUFFile, hidden: int) -> int:
    """Return the bytes of a recurrent layer's state; other layers of hybrids are counted alike."""
    values = scalar(file, "ssm.state_size", 0) * scalar(file, "ssm.inner_size", 0)
    values += max(scalar(file, "ssm.conv_kernel", 0) - 1, 0) * scalar(file, "ssm.inner_size", 0)
    values += hidden * scalar(file, "wkv.head_size", 0)
    values += 2 * hidden if file.get("wkv.head_size") else 0
    values += max(scalar(file, "shortconv.l_cache", 0) - 1, 0) * hidden
    return values * _FLOAT_BYTES


def _bytes(kind: GGMLType, values: int) -> int:
    return kind.nbytes(-(-values // kind.block_size) * kind.block_size)
