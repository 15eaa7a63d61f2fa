"""Vocabularies of SentencePiece's own files, and Unigram ones of `tokenizer.json`."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Any, Final

import numpy as np

from puna.convert.added import added_tokens
from puna.convert.checkpoint import Checkpoint
from puna.convert.config import Config
from puna.convert.tokens import Tokens, model_of, size_of
from puna.errors import ConversionError, shown
from puna.tokenizer.vocabulary import TokenType

FILES: Final = ("tokenizer.model", "spiece.model")
_LARGEST: Final = 1 << 26  # bytes


def pieces(checkpoint: Checkpoint, config: Config, path: Path) -> Tokens:
    """BPE of a `tokenizer.model`."""
    processor = _processor(path)
    count = processor.GetPieceSize()
    tokens = Tokens.empty("llama", size_of(checkpoint, config, count), scored=True)
    for id in range(count):
        tokens.put(id, processor.IdToPiece(id), _kind(processor, id), float(processor.GetScore(id)))
    for id, (text, special) in added_tokens(checkpoint).items():
        if id >= count or not processor.IsUnknown(id):
            tokens.add(id, text, special=special)
    return tokens


def _processor(path: Path) -> Any:
    from sentencepiece import SentencePieceProcessor

    if path.stat().st_size > _LARGEST:
        raise ConversionError(f"{path.name} has more than {_LARGEST >> 20} MiB")
    try:
        return SentencePieceProcessor(model_proto=path.read_bytes())
    except (OSError, RuntimeError, ValueError) as error:
        raise ConversionError(f"{path.name} cannot be read: {shown(str(error))}") from None


def _kind(processor: Any, id: int) -> TokenType:
    for asks, kind in (
        (processor.IsUnknown, TokenType.UNKNOWN),
        (processor.IsControl, TokenType.CONTROL),
        (processor.IsUnused, TokenType.UNUSED),
        (processor.IsByte, TokenType.BYTE),
    ):
        if asks(id):
            return kind
    return TokenType.NORMAL


def unigrams(checkpoint: Checkpoint, config: Config) -> Tokens:
    """The Unigram vocabulary of a `tokenizer.json` (T5, XLM-RoBERTa)."""
    model = model_of(checkpoint, "Unigram")
    given = model.get("vocab")
    if not isinstance(given, list) or not all(isinstance(entry, list) and len(entry) == 2 for entry in given):
        raise ConversionError("tokenizer.json: 'model.vocab' is no list of texts and scores")
    tokens = Tokens.empty("t5", size_of(checkpoint, config, len(given)), scored=True)
    unknown = model.get("unk_id")
    for id, (text, score) in enumerate(given):
        tokens.put(id, str(text), TokenType.UNKNOWN if id == unknown else TokenType.NORMAL, float(score))
    for id, (text, special) in added_tokens(checkpoint).items():
        if id != unknown:
            score = float(given[id][1]) if id < len(given) else 0.0
            tokens.put(id, text, TokenType.CONTROL if special else TokenType.USER_DEFINED, score)
    steps = checkpoint.json("tokenizer.json").get("normalizer") or {}
    settings = checkpoint.json("tokenizer_config.json")
    tokens.more["add_space_prefix"] = bool(settings.get("add_prefix_space", True))
    tokens.more["remove_extra_whitespaces"] = bool(settings.get("clean_up_tokenization_spaces", True))
    for step in steps.get("normalizers", [steps]) if isinstance(steps, dict) else ():
        if isinstance(step, dict) and isinstance(table := step.get("precompiled_charsmap"), str) and table:
            try:
                tokens.more["precompiled_charsmap"] = np.frombuffer(base64.b64decode(table), np.uint8)
            except binascii.Error as error:
                raise ConversionError(f"tokenizer.json: 'precompiled_charsmap': {error}") from None
    return tokens
