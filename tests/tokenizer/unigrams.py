"""Unigram vocabularies trained on a few words, with the keys that converters write."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import sentencepiece

_TEXT = (
    "the quick brown fox jumps over lazy dog a story of time and tide one two three naïve café "
    "déjà vu Straße 日本語 한국어 мир ΑΒΓ ﬁne １２３ ½ don't we'll hello world embedding search"
)
WORDS = _TEXT.split()


def trained(**settings: Any) -> bytes:
    """Train a model with sentencepiece and return it serialised, always the same for the same `settings`."""
    chosen, model = random.Random(1), io.BytesIO()
    sentences = (" ".join(chosen.choices(WORDS, k=chosen.randint(3, 12))) for _ in range(400))
    sentencepiece.SentencePieceTrainer.train(
        **{
            "sentence_iterator": sentences,
            "model_writer": model,
            "model_type": "unigram",
            "vocab_size": 150,
            "hard_vocab_limit": False,
            "character_coverage": 1.0,
            "num_threads": 1,
            "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1,
            "minloglevel": 2,
            **settings,
        }
    )  # fmt: skip
    return model.getvalue()


def keys(model: bytes) -> dict[str, Any]:
    """Return the `tokenizer.ggml` keys of a serialised model, as converters write them."""
    read = sentencepiece.SentencePieceProcessor(model_proto=model)
    ids = list(range(read.vocab_size()))
    types = [
        2 if read.is_unknown(id) else 3 if read.is_control(id) else 6 if read.is_byte(id) else 1 for id in ids
    ]
    (normalizer,) = _fields(model, 3)
    found = {
        "tokens": read.id_to_piece(ids),
        "scores": read.get_score(ids),
        "token_type": types,
        "add_space_prefix": _fields(normalizer, 3) != [0],
        "remove_extra_whitespaces": _fields(normalizer, 4) != [0],
        "eos_token_id": 1,
        "padding_token_id": 0,
        "unknown_token_id": 2,
    }
    if any(charsmap := _fields(normalizer, 2)):
        found["precompiled_charsmap"] = np.frombuffer(charsmap[0], np.uint8)
    return found


def _fields(message: bytes, wanted: int) -> list[Any]:
    """Return the values of field `wanted` of a serialised protobuf message: numbers, and bytes."""
    found: list[Any] = []
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        number, wire = divmod(varint(), 8)
        if wire == 0:
            value: Any = varint()
        else:
            size = varint() if wire == 2 else {1: 8, 5: 4}[wire]
            value = message[at : at + size]
            at += size
        if number == wanted:
            found.append(value)
    return found


def realigned(model: bytes) -> dict[str, Any]:
    """Return the keys of an XLM-RoBERTa vocabulary, which has its own special tokens before the pieces."""
    own = keys(model)
    return own | {
        "tokens": ["<s>", "<pad>", "</s>", "<unk>", *own["tokens"][3:], "<mask>"],
        "scores": [0.0] * 4 + own["scores"][3:] + [0.0],
        "token_type": [3, 3, 3, 2, *own["token_type"][3:], 3],
        "bos_token_id": 0,
        "eos_token_id": 2,
        "padding_token_id": 1,
        "unknown_token_id": 3,
        "add_bos_token": True,
        "add_eos_token": True,
    }
