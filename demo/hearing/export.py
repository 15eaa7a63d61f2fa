"""Export demo-audio to GGUF: `python -m demo.hearing.export`.

The tower has a file of its own, as in llama.cpp. Matrices become Q8_0 and convolutions F16; norms,
biases and positions, which llama.cpp adds, stay F32.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from demo.export import CONTROL_TYPE, NORMAL, vocabulary
from demo.hearing.model import AudioModel
from demo.hearing.train import OUT, load_model
from demo.hearing.vocabulary import BOS_ID, CHAT_TEMPLATE, CONTROL, END_ID, load_vocabulary
from demo.vocabulary import PRE
from puna.demo import path as bundled_path
from puna.demo import projector_path
from puna.gguf import FileType, GGMLType, GGUFWriter, ValueType

_TOWER = ("a.", "mm.a.")


def export(
    model: AudioModel, tokenizer: Tokenizer, path: Path, tower: Path, kind: GGMLType = GGMLType.Q8_0
) -> None:
    """Write the text model and its vocabulary to `path`, and the `tower`; matrices have the type `kind`."""
    shape = model.shape
    names = dict(model.named_parameters())
    sizes = {part: sum(p.numel() for name, p in names.items() if name.startswith(_TOWER) == part) for part in
             (False, True)}  # fmt: skip
    text = _writer(path, "qwen2", kind, "Puna Demo Audio", "model", sizes[False], {
        "block_count": shape.layers,
        "context_length": shape.context,
        "embedding_length": shape.hidden,
        "feed_forward_length": shape.feed_forward,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.heads,
        "attention.layer_norm_rms_epsilon": shape.norm_eps,
        "rope.freq_base": shape.rope_base,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": PRE,
        "tokenizer.ggml.bos_token_id": BOS_ID,
        "tokenizer.ggml.eos_token_id": END_ID,
        "tokenizer.ggml.eot_token_id": END_ID,
        "tokenizer.ggml.padding_token_id": BOS_ID,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    })  # fmt: skip
    tokens, merges = vocabulary(tokenizer)
    types = [CONTROL_TYPE if token in CONTROL else NORMAL for token in tokens]
    text.add("tokenizer.ggml.tokens", tokens)
    text.add("tokenizer.ggml.token_type", types, ValueType.INT32)
    text.add("tokenizer.ggml.merges", merges)
    hearing = _writer(tower, "clip", kind, "Puna Demo Audio's tower", "mmproj", sizes[True], {
        "has_audio_encoder": True,
        "projector_type": "qwen2a",
        "use_gelu": True,
        "audio.block_count": shape.audio_layers,
        "audio.embedding_length": shape.audio_hidden,
        "audio.feed_forward_length": shape.audio_feed_forward,
        "audio.attention.head_count": shape.audio_heads,
        "audio.attention.layer_norm_epsilon": shape.audio_norm_eps,
        "audio.num_mel_bins": shape.bands,
        "audio.projection_dim": shape.hidden,
    })  # fmt: skip
    for name, parameter in names.items():
        values = parameter.detach().numpy()
        if name == "token_embd.weight":
            values = values[: len(tokens)]  # the vocabulary is smaller than its maximum
        if "conv1d" in name and values.ndim == 1:
            values = values[:, None]  # llama.cpp adds it to [out, frames]
        matrix = name == "token_embd.weight" or (values.ndim == 2 and ("blk." in name or "fc." in name))
        writer = hearing if name.startswith(_TOWER) else text
        writer.add_tensor(name, values, kind if matrix else GGMLType.F16 if values.ndim > 2 else GGMLType.F32)
    text.write()
    hearing.write()


def _writer(
    path: Path,
    architecture: str,
    kind: GGMLType,
    name: str,
    purpose: str,
    parameters: int,
    more: dict[str, Any],
) -> GGUFWriter:
    writer = GGUFWriter(path, architecture)
    for key, value in {
        "general.type": purpose,
        "general.name": name,
        "general.description": "Tiny demo model: spoken digits and commands",
        "general.license": "apache-2.0",
        "general.size_label": f"{parameters / 1e6:.1f}M",
        "general.quantization_version": 2,
        "general.file_type": int(FileType[kind.name]),
        **more,
    }.items():
        writer.add(key, value)
    return writer


def main() -> None:
    """Export the latest checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT, help="folder of checkpoint.pt and tokenizer.json")
    parser.add_argument("--to", type=Path, default=bundled_path("demo-audio"))
    parser.add_argument("--tower", type=Path, default=projector_path("demo-audio"))
    parser.add_argument("--kind", default="Q8_0", help="block type of the layers' matrices: F32, F16, Q8_0")
    arguments = parser.parse_args()
    model, tokenizer = load_model(arguments.out / "checkpoint.pt"), load_vocabulary(
        arguments.out / "tokenizer.json"
    )  # fmt: skip
    export(model, tokenizer, arguments.to, arguments.tower, GGMLType[arguments.kind])
    for path in (arguments.to, arguments.tower):
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
