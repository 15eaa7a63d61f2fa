"""Texts of every kind through every kind of vocabulary: they round-trip, in bounded work."""

from __future__ import annotations

import functools
import random
import tempfile
from pathlib import Path

from puna.tokenizer import Tokenizer
from puna.tokenizer.patterns import BY_NAME, LINES
from tests.fuzz.case import Bounds
from tests.tokenizer.vocabularies import (
    BYTE,
    BYTE_TOKENS,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    build,
    gpt2_bytes,
)

#: Building blocks of texts: characters that patterns distinguish, known spellings, and others.
PARTS = (
    "a", "the", " the", "The", "THE", "don't", "'S", "1", "12345", " ", "\t", "\n", "\r\n", "\r", "\0", "!",
    "...", "<|end|>", "<|", "|>", "<s>", "<unk>", "[MASK]", "<0x41>", "\u2581", "\u00a0", "\u2028", "\ufeff",
    "\u6f22\u5b57", "\u304b\u306a", "\ud55c\uae00", "\u0e20\u0e32\u0e29\u0e32", "\u0627\u0644", "\u0301",
    "\u200d", "\u202e", "\U0001f469\u200d\U0001f692", "\u00bd", "\u0663", "\ufffd", "\U0010ffff", "\x1b[2J",
    "_", "/", "\\", '"', "{", "#",
)  # fmt: skip
#: Pre-tokenizers of byte-level vocabularies.
PRES = sorted(name for name, pre in BY_NAME.items() if pre is not LINES)
#: Characters of the longest text, which must be tokenised within the seconds of `BOUNDS`.
LONGEST = 40_000

BOUNDS = Bounds(seconds=4.0)


def fuzz(dice: random.Random, folder: Path) -> None:
    kind = dice.choice(("gpt2", "gpt2", "gpt2", "llama", "bert", "t5", "gemma4", "rwkv"))
    tokenizer = _tokenizer(kind, dice.choice(PRES) if kind == "gpt2" else "")
    text = text_of(dice)
    (folder / "text").write_text(repr(text))
    ids = tokenizer.encode(text, add_special=False, parse_special=dice.random() < 0.5)
    assert all(0 <= id < tokenizer.vocab_size for id in ids)
    valid = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert len(ids) <= 2 * len(valid.encode()) + 1
    if kind != "bert":  # does not keep blanks and case
        assert tokenizer.decode(ids) == (valid if kind in ("gpt2", "rwkv") else valid.replace("\u2581", " "))


def text_of(dice: random.Random) -> str:
    """Return parts in random order, or one or a few of them repeated."""
    few = dice.choices(PARTS, k=dice.randint(1, 4))
    match dice.randrange(4):
        case 0:
            return "".join(dice.choices(PARTS, k=dice.randint(0, 200)))
        case 1:
            return "".join(few) * dice.randint(1, LONGEST // len("".join(few)))
        case 2:
            return few[0] * dice.randint(1, LONGEST // len(few[0])) + "".join(dice.choices(PARTS, k=3))
        case _:
            return "".join(
                chr(dice.choice((dice.randrange(0x110000), dice.randrange(0x300)))) for _ in range(300)
            )


@functools.cache
def _tokenizer(kind: str, pre: str) -> Tokenizer:
    """Build a small vocabulary with every byte, some words and some special tokens."""
    path = Path(tempfile.mkdtemp()) / "vocabulary.gguf"
    added = ["<unk>", "<|end|>", "<s>", "[MASK]"]
    types = [UNKNOWN, CONTROL, CONTROL, USER_DEFINED]
    words = ["the", "\u2581the", "\u2581", "aa", "aaaa", "12", "\u6f22"]
    match kind:
        case "gpt2":
            merges = ["t h", "th e", "\u0120 the", "\u0120 \u0120", "1 2", "a a", "aa aa", "\u010a \u010a"]
            tokens = [*gpt2_bytes(), *(merge.replace(" ", "") for merge in merges), *added]
            types = [NORMAL] * (len(tokens) - len(added)) + types
            return build(path, "gpt2", tokens=tokens, token_type=types, merges=merges, pre=pre)
        case "rwkv":
            spelled = [bytes([byte]) for byte in range(256)] + [word.encode() for word in words]
            tokens = [*added, *(repr(token)[2:-1] for token in spelled)]
            types += [NORMAL] * len(spelled)
            return build(path, "rwkv", tokens=tokens, token_type=types)
        case "gemma4":
            tokens = [*added, *BYTE_TOKENS, *"the\u2581a\n", "th", "\u2581t", "aa", "\n\n"]
            types += [BYTE] * 256 + [NORMAL] * (len(tokens) - len(added) - 256)
            return build(path, "gemma4", tokens=tokens, token_type=types, merges=["t h", "\u2581 t", "a a"])
        case "llama" | "t5":
            tokens = [*added, *BYTE_TOKENS, *"the\u2581a12", *words]
            types += [BYTE] * 256 + [NORMAL] * (len(tokens) - len(added) - 256)
            scores = [-float(id) for id in range(len(tokens))]
            # The space that files add after special tokens could not be told from one in the text.
            extra = {"scores": scores, "add_space_prefix": False, "remove_extra_whitespaces": False}
            return build(path, kind, tokens=tokens, token_type=types, **extra)
    tokens = [*added, *"\u2581abcdefghijklmnopqrstuvwxyz0123456789", *words]
    types += [NORMAL] * (len(tokens) - len(added))
    return build(path, "bert", tokens=tokens, token_type=types, unknown_token_id=0)
