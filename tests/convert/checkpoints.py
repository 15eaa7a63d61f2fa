"""Tiny random models saved as published ones are: safetensors, config, tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.tiny.llama import CHATML, SPECIALS, WORDS, merges, vocabulary
from tests.tiny.words import save_words

#: The expression Llama 3's tokenizer.json splits texts with before merging.
LLAMA3_CUT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def saved(folder: Path, model: Any, *, tokenizer: bool = True, **more: Any) -> Path:
    """Save `model` of transformers to `folder`, with the tokenizer of all tiny models; return the folder."""
    if hasattr(model, "save_pretrained"):
        model.save_pretrained(folder, **more)
    else:  # our own reference for a model that transformers lacks
        folder.mkdir()
        save_file(model.state_dict(), folder / "model.safetensors")
        settings = {**vars(model.config), "architectures": [type(model).__name__]}
        (folder / "config.json").write_text(json.dumps(settings))
    if tokenizer:
        save_tokenizer(folder)
    return folder


def save_tokenizer(
    folder: Path, cut: str | None = None, markers: Sequence[str] = (), words: Sequence[str] = WORDS
) -> None:
    """Save the byte-level BPE of all tiny models, followed by `markers`.

    Texts are split as by GPT-2's, or by the expression `cut`.
    """
    tokens = [*vocabulary(words), *markers]
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
            "vocab": ids, "merges": [list(pair) for pair in merges(words)],
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


def saved_with_words(folder: Path, model: Any) -> Path:
    """Save an encoder of transformers to `folder`, with the words of all tiny encoders; return the folder."""
    save_words(saved(folder, model, tokenizer=False))
    return folder


def save_modules(folder: Path, pooling: str = "mean_tokens", linears: Sequence[torch.Tensor] = ()) -> None:
    """Save the modules of sentence-transformers beside a model: pooling, then dense modules of `linears`."""
    kinds: list[tuple[str, dict[str, Any]]] = [("Pooling", {f"pooling_mode_{pooling}": True})]
    for weight in linears:
        rows, columns = weight.shape
        settings = {
            "in_features": columns, "out_features": rows, "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        }  # fmt: skip
        kinds.append(("Dense", settings))
    modules = []
    for number, (kind, settings) in enumerate(kinds, 1):
        path = f"{number}_{kind}"
        modules.append({"type": f"sentence_transformers.models.{kind}", "path": path})
        (folder / path).mkdir()
        (folder / path / "config.json").write_text(json.dumps(settings))
    for number, weight in enumerate(linears, 2):
        save_file({"linear.weight": weight}, folder / f"{number}_Dense" / "model.safetensors")
    (folder / "modules.json").write_text(json.dumps(modules))


def save_nemotron_head(folder: Path, model: Any) -> Path:
    """Save a Nemotron 3 with a prediction head: an attention layer and an expert layer, like the model's."""
    saved(folder, model)
    tensors = load_file(folder / "model.safetensors")
    hidden = model.config.hidden_size
    for theirs, kind in enumerate(("full_attention", "moe")):
        of_model = f"layers.{model.config.layers_block_type.index(kind)}."
        for name in [name for name in tensors if of_model in name and not name.startswith("mtp.")]:
            tensors[f"mtp.layers.{theirs}.{name.split(of_model)[1]}"] = tensors[name].clone()
    for number, (name, *shape) in enumerate(
        (
            ("0.enorm", hidden),
            ("0.hnorm", hidden),
            ("0.eh_proj", hidden, 2 * hidden),
            ("1.final_layernorm", hidden),
        )
    ):
        generator = torch.Generator().manual_seed(number)
        tensors[f"mtp.layers.{name}.weight"] = torch.randn(shape, generator=generator)
    save_file(tensors, folder / "model.safetensors")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_nextn_predict_layers": 1}))
    return folder
