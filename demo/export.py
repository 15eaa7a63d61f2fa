"""Export a checkpoint to GGUF: `python -m demo.export`. Matrices become Q8_0, norms stay F32."""

import argparse
import json
from pathlib import Path

from tokenizers import Tokenizer

from demo.model import DemoModel
from demo.train import OUT, load_model
from demo.vocabulary import BOS_ID, CHAT_TEMPLATE, CONTROL, END_ID, PRE, load_vocabulary
from puna.demo import path as bundled_path
from puna.gguf import FileType, GGMLType, GGUFWriter, ValueType

NORMAL, CONTROL_TYPE = 1, 3  # tokenizer.ggml.token_type


def export(model: DemoModel, tokenizer: Tokenizer, path: Path, kind: GGMLType = GGMLType.Q8_0) -> None:
    """Write `model` and its vocabulary to `path`, with matrices of type `kind`."""
    shape = model.shape
    writer = GGUFWriter(path, "llama")
    parameters = sum(p.numel() for p in model.parameters())
    for key, value in {
        "general.type": "model",
        "general.name": "Puna Demo",
        "general.description": "Tiny demo model: short stories, simple facts, small sums",
        "general.license": "apache-2.0",
        "general.size_label": f"{parameters / 1e6:.1f}M",
        "general.quantization_version": 2,
        "general.file_type": int(
            FileType[kind.name if kind.name in FileType.__members__ else f"{kind.name}_S"]
        ),
        "block_count": shape.layers,
        "context_length": shape.context,
        "embedding_length": shape.hidden,
        "feed_forward_length": shape.feed_forward,
        "vocab_size": shape.vocabulary,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.layer_norm_rms_epsilon": shape.norm_eps,
        "rope.dimension_count": shape.head,
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
    }.items():
        writer.add(key, value)
    # <|endoftext|> ends plain text, <|im_end|> an answer.
    writer.add("tokenizer.ggml.eos_token_ids", [END_ID, BOS_ID], ValueType.INT32)
    tokens, merges = vocabulary(tokenizer)
    writer.add("tokenizer.ggml.tokens", tokens)
    writer.add(
        "tokenizer.ggml.token_type",
        [CONTROL_TYPE if t in CONTROL else NORMAL for t in tokens],
        ValueType.INT32,
    )
    writer.add("tokenizer.ggml.merges", merges)
    for name, parameter in model.named_parameters():
        writer.add_tensor(name, parameter.detach().numpy(), kind if parameter.dim() == 2 else GGMLType.F32)
    writer.write()


def vocabulary(tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    """Return the tokens in the order of their ids, and the merges in GGUF's format."""
    data = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(data["vocab"], key=data["vocab"].__getitem__)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in data["merges"]]
    return tokens, merges


def main() -> None:
    """Export the latest checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT, help="folder of checkpoint.pt and tokenizer.json")
    parser.add_argument("--to", type=Path, default=bundled_path())
    parser.add_argument(
        "--kind", default="Q8_0", help="block type of the matrices, such as F32, Q8_0 or Q4_K"
    )
    arguments = parser.parse_args()
    model = load_model(arguments.out / "checkpoint.pt")
    export(model, load_vocabulary(arguments.out / "tokenizer.json"), arguments.to, GGMLType[arguments.kind])
    print(f"{arguments.to}: {arguments.to.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
