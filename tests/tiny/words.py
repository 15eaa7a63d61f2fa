"""Vocabulary of tiny encoders: words, letters and continuations."""

from __future__ import annotations

import json
import string
from pathlib import Path

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
#: Files mark the tokens that begin a word.
VOCABULARY = [
    *SPECIALS,
    *("▁" + word for word in ("once", "upon", "a", "time", "there", "was", "cat")),
    *("▁" + letter for letter in string.ascii_lowercase + string.punctuation if letter != "a"),
    *string.ascii_lowercase,
    "ing",
]


def save_words(folder: Path) -> None:
    """Save the WordPiece vocabulary of tiny encoders."""
    words = [
        word[1:] if word.startswith("▁") else word if word in SPECIALS else "##" + word for word in VOCABULARY
    ]
    tokenizer = {
        "added_tokens": [
            {
                "id": words.index(text), "content": text, "special": True, "single_word": False,
                "lstrip": False, "rstrip": False, "normalized": False,
            }
            for text in SPECIALS
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
    settings = {"tokenizer_class": "BertTokenizer", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
