"""Export demo-vision to GGUF: `python -m demo.vision.export`.

Text model and tower share one file, as with Ollama. The layers' matrices become Q8_0, positions,
the patch embedding and the projection F16; norms and biases stay F32.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tokenizers import Tokenizer

from demo.export import CONTROL_TYPE, NORMAL, vocabulary
from demo.vision.model import VisionModel
from demo.vision.train import OUT, load_model
from demo.vision.vocabulary import BOS_ID, CHAT_TEMPLATE, CONTROL, END_ID, load_vocabulary
from demo.vocabulary import PRE
from puna.demo import path as bundled_path
from puna.gguf import FileType, GGMLType, GGUFWriter, ValueType


def export(model: VisionModel, tokenizer: Tokenizer, path: Path, kind: GGMLType = GGMLType.Q8_0) -> None:
    """Write `model` and its vocabulary to `path`, with the layers' matrices of type `kind`."""
    shape = model.shape
    writer = GGUFWriter(path, "gemma3")
    parameters = sum(p.numel() for p in model.parameters())
    for key, value in {
        "general.type": "model",
        "general.name": "Puna Demo Vision",
        "general.description": "Tiny demo model: shapes, colours, printed numbers, bar charts",
        "general.license": "apache-2.0",
        "general.size_label": f"{parameters / 1e6:.1f}M",
        "general.quantization_version": 2,
        "general.file_type": int(FileType[kind.name]),
        "block_count": shape.layers,
        "context_length": shape.context,
        "embedding_length": shape.hidden,
        "feed_forward_length": shape.feed_forward,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.heads,
        "attention.key_length": shape.head,
        "attention.value_length": shape.head,
        "attention.layer_norm_rms_epsilon": shape.norm_eps,
        "rope.freq_base": shape.rope_base,
        "vision.block_count": shape.vision_layers,
        "vision.embedding_length": shape.vision_hidden,
        "vision.attention.head_count": shape.vision_heads,
        "vision.feed_forward_length": shape.vision_feed_forward,
        "vision.attention.layer_norm_epsilon": shape.norm_eps,
        "vision.image_size": shape.image,
        "vision.patch_size": shape.patch,
        "vision.num_channels": 3,
        "mm.tokens_per_image": shape.rows,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": PRE,
        "tokenizer.ggml.bos_token_id": BOS_ID,
        "tokenizer.ggml.eos_token_id": END_ID,
        "tokenizer.ggml.eot_token_id": END_ID,
        "tokenizer.ggml.padding_token_id": BOS_ID,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }.items():
        writer.add(key, value)
    tokens, merges = vocabulary(tokenizer)
    types = [CONTROL_TYPE if token in CONTROL else NORMAL for token in tokens]
    writer.add("tokenizer.ggml.tokens", tokens)
    writer.add("tokenizer.ggml.token_type", types, ValueType.INT32)
    writer.add("tokenizer.ggml.merges", merges)
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        if name == "token_embd.weight":
            values = values[: len(tokens)]  # the vocabulary is smaller than its maximum
        matrix = name == "token_embd.weight" or (values.ndim == 2 and "blk." in name)
        writer.add_tensor(name, values, kind if matrix else GGMLType.F16 if values.ndim > 1 else GGMLType.F32)
    writer.write()


def main() -> None:
    """Export the latest checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT, help="folder of checkpoint.pt and tokenizer.json")
    parser.add_argument("--to", type=Path, default=bundled_path("demo-vision"))
    parser.add_argument("--kind", default="Q8_0", help="block type of the layers' matrices: F32, F16, Q8_0")
    arguments = parser.parse_args()
    model = load_model(arguments.out / "checkpoint.pt")
    export(model, load_vocabulary(arguments.out / "tokenizer.json"), arguments.to, GGMLType[arguments.kind])
    print(f"{arguments.to}: {arguments.to.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
