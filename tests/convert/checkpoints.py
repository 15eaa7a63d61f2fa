"""Tiny random models as they are published: safetensors, settings, a tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from tests.tiny import CHATML, SPECIALS, merges, vocabulary

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
