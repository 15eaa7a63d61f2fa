"""Forecast of the memory of published models: the table of docs/which-model.md, from headers alone.

make docs-memory
"""

from __future__ import annotations

import math
import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np
from memory_report import COLUMNS, REPORT, Need, Run
from models import tensors_of
from shapes import SHAPES, Floats, Shape, gemma3, gpt_oss, llama, qwen3, qwen3moe

from puna.gguf import open_gguf
from puna.model.load import forecast_for

BATCH = 512


@dataclass(frozen=True)
class Published:
    """A model that people download: its sizes are those of its configuration on Hugging Face."""

    name: str
    shape: Shape
    mixes: tuple[str, ...] = ("q4_k_m", "q8_0")


def _untied(shape: Shape) -> Shape:
    return replace(shape, untied=True)


def _llama(hidden: int, feed_forward: int, layers: int, heads: int, vocab: int) -> Shape:
    shape = llama(hidden, feed_forward, layers, heads, 8, 128, vocab, rope_base=500000.0)
    lengths = {"attention.key_length": 128, "attention.value_length": 128}
    return replace(shape, keys={**shape.keys, **lengths}, untied=True)


PUBLISHED = (
    Published("Qwen3 0.6B", qwen3(1024, 3072, 28, 16, 8, 151936)),
    Published("Llama 3.2 1B", SHAPES["1b"]),
    Published("Qwen3 1.7B", qwen3(2048, 6144, 28, 16, 8, 151936)),
    Published("Llama 3.2 3B", SHAPES["3b"]),
    Published("Qwen3 4B", qwen3(2560, 9728, 36, 32, 8, 151936)),
    Published("Gemma 3 4B", gemma3(2560, 10240, 34, 8, 4, 1024, 262208)),
    Published("Llama 3.1 8B", _llama(4096, 14336, 32, 32, 128256)),
    Published("Qwen3 8B", _untied(qwen3(4096, 12288, 36, 32, 8, 151936))),
    Published("Gemma 3 12B", gemma3(3840, 15360, 48, 16, 8, 1024, 262208)),
    Published("gpt-oss 20B", gpt_oss(24, 32), ("mxfp4",)),
    Published("Qwen3 14B", _untied(qwen3(5120, 17408, 40, 40, 8, 151936))),
    Published("Mistral Small 24B", _llama(5120, 32768, 40, 32, 131072)),
    Published("Gemma 3 27B", gemma3(5376, 21504, 62, 32, 16, 1024, 262208, 128)),
    Published("Qwen3 30B-A3B", _untied(qwen3moe(2048, 768, 48, 32, 4, 128, 8, 151936))),
    Published("Qwen3 32B", _untied(qwen3(5120, 25600, 64, 64, 8, 151936))),
    Published("gpt-oss 120B", gpt_oss(36, 128), ("mxfp4",)),
    Published("Llama 3.3 70B", _llama(8192, 28672, 80, 64, 128256)),
)


def write_header(path: Path, shape: Shape, mix: str) -> int:
    """Write a GGUF file with a hole in the place of its weights; return how many bytes they would have."""
    writer = gguf.GGUFWriter(path, shape.architecture)
    writer.add_block_count(len(shape.layers))
    writer.add_context_length(131072)
    writer.add_embedding_length(shape.hidden)
    writer.add_vocab_size(shape.vocab)
    for key, value in shape.keys.items():
        full = f"{shape.architecture}.{key}"
        if isinstance(value, bool):
            writer.add_bool(full, value)
        elif isinstance(value, int):
            writer.add_uint32(full, value)
        elif isinstance(value, float):
            writer.add_float32(full, value)
        else:
            writer.add_array(full, value)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"token{i}" for i in range(shape.vocab)])
    size = 0
    for name, of, kind in tensors_of(shape, mix):
        dimensions = of.shape if isinstance(of, Floats) else of
        nbytes = kind.nbytes(math.prod(dimensions))
        writer.add_tensor_info(
            name, dimensions, np.dtype(np.float32), nbytes, gguf.GGMLQuantizationType(kind)
        )
        size += nbytes
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    os.truncate(path, 2 * size + (1 << 24))
    return size


def need(model: Published, mix: str, folder: Path) -> Need:
    path = folder / "model.gguf"
    size = write_header(path, model.shape, mix)
    with open_gguf(path) as file:
        forecast = forecast_for(file)
        totals = {
            (context, parallel): forecast.table(context=context, parallel=parallel, batch=BATCH).host
            for context, parallel in COLUMNS
        }
    path.unlink()
    return Need(model.name, mix.upper(), size, [totals[column] for column in COLUMNS])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        needs = [need(model, mix, Path(folder)) for model in PUBLISHED for mix in model.mixes]
    REPORT.write(Run(needs))


if __name__ == "__main__":
    main()
