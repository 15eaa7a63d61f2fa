"""Tiny random models as they are published: safetensors, settings, a tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.tiny import CHATML, SPECIALS, merges, vocabulary
from tests.tiny_bert import SPECIALS as WORD_SPECIALS
from tests.tiny_bert import VOCABULARY as WORD_PIECES

#: How texts are cut before merges, as Llama 3's tokenizer.json says it.
LLAMA3_CUT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def saved(folder: Path, model: Any, *, tokenizer: bool = True, **more: Any) -> Path:
    """`model` of transformers in `folder`, with the tokenizer of all tiny models; returns the folder."""
    if hasattr(model, "save_pretrained"):
        model.save_pretrained(folder, **more)
    else:  # a reference of ours, for what transformers lacks
        folder.mkdir()
        save_file(model.state_dict(), folder / "model.safetensors")
        settings = {**vars(model.config), "architectures": [type(model).__name__]}
        (folder / "config.json").write_text(json.dumps(settings))
    if tokenizer:
        save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path, cut: str | None = None, markers: Sequence[str] = ()) -> None:
    """The byte-level BPE of all tiny models, cut like GPT-2's or by an expression; `markers` follow it."""
    tokens = [*vocabulary(), *markers]
    special = {*SPECIALS, *markers}
    ids = {token: id for id, token in enumerate(tokens) if token not in special}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": cut is None}
    split = {"type": "Split", "pattern": {"Regex": cut}, "behavior": "Isolated", "invert": False}
    begin, end, _, turn_end = SPECIALS
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": tokens.index(token), "content": token, "special": True, "single_word": False,
                "lstrip": False, "rstrip": False, "normalized": False,
            }
            for token in (*SPECIALS, *markers)
        ],
        "normalizer": None,
        "pre_tokenizer": level if cut is None else {"type": "Sequence", "pretokenizers": [split, level]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": begin, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
            ],
            "pair": [
                {"SpecialToken": {"id": begin, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": begin, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {
                begin: {"id": begin, "ids": [tokens.index(begin)], "tokens": [begin]},
            },
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": ids, "merges": [list(pair) for pair in merges()],
        },
    }  # fmt: skip
    settings = {
        "bos_token": begin, "eos_token": end, "chat_template": CHATML, "clean_up_tokenization_spaces": False,
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 256,
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    ends = [tokens.index(end), tokens.index(turn_end)]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))


def save_words(folder: Path) -> None:
    """The WordPiece vocabulary of tiny encoders."""
    words = [
        word[1:] if word.startswith("▁") else word if word in WORD_SPECIALS else "##" + word
        for word in WORD_PIECES
    ]
    tokenizer = {
        "added_tokens": [
            {
                "id": words.index(text), "content": text, "special": True, "single_word": False,
                "lstrip": False, "rstrip": False, "normalized": False,
            }
            for text in WORD_SPECIALS
        ],
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
            "strip_accents": None, "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": {word: id for id, word in enumerate(words)},
        },
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text('{"cls_token": "[CLS]", "sep_token": "[SEP]"}')


#: What parts of a prediction head are called in checkpoints: Qwen's have names of their own.
_HEADS = {
    "eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "embed_tokens": "embed_tokens",
    "shared_head_head": "shared_head.head", "shared_head_norm": "shared_head.norm",
    "layer_output_norm": "final_layernorm",
}  # fmt: skip
_QWEN_HEADS = {
    "eh_proj": "fc", "enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden",
    "shared_head_norm": "norm",
}  # fmt: skip


def save_heads(folder: Path, tiny: Any, model: Any) -> Path:
    """The checkpoint of a model with prediction heads, which are its last layers; returns the folder."""
    saved(folder, model)
    config = json.loads((folder / "config.json").read_text())
    count = config["num_hidden_layers"] - tiny.heads
    config |= {"num_hidden_layers": count, "num_nextn_predict_layers": tiny.heads}
    for name in ("layer_types", "mlp_layer_types"):
        if name in config:
            config[name] = config[name][:count]
    kind = config["architectures"][0]
    within = {"Qwen": "mtp.layers.", "MiMo": "model.mtp.layers."}.get(kind[:4])
    tensors = load_file(folder / "model.safetensors")
    for layer in range(count, count + tiny.heads):
        ours = f"model.layers.{layer}."
        theirs = ours if within is None else f"{within}{layer - count}."
        tensors = {name.replace(ours, theirs): values for name, values in tensors.items()}
        for name, values in tiny.parts(layer).items():
            part = name.removeprefix("nextn.")
            if kind.startswith("Qwen"):
                if part not in _QWEN_HEADS:
                    tensors[f"{theirs}{_HEADS[part]}.weight"] = torch.from_numpy(values)
                    continue
                offset = tiny.decoder.norm_offset if "norm" in part else 0
                tensors[f"mtp.{_QWEN_HEADS[part]}.weight"] = torch.from_numpy(values - offset)
            else:
                tensors[f"{theirs}{_HEADS[part]}.weight"] = torch.from_numpy(values)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: values.contiguous() for name, values in tensors.items()}, folder / "model.safetensors")
    return folder
