"""PLaMo's tokenizer, whose ids are compared with those that llama.cpp gives for the same vocabulary."""

from __future__ import annotations

from pathlib import Path

import pytest

from puna.errors import TokenizerError
from puna.gguf import open_gguf
from puna.tokenizer import Tokenizer, tokenizer_from_gguf
from tests.tokenizer.vocabularies import BYTE, BYTE_TOKENS, CONTROL, NORMAL, UNKNOWN, write_vocabulary

SPECIAL = {
    "<|plamo:unk|>": UNKNOWN,
    "<|plamo:bos|>": CONTROL,
    "<|plamo:eos|>": CONTROL,
    "<|plamo:op|>": CONTROL,
}
#: Scores of pieces, some of them equal, so that several ways cost the same.
PIECES = {
    "a": -3.0, "b": -3.0, "c": -3.5, "ab": -5.0, "bc": -4.0, "abc": -9.0, "ca": -6.5, " ": -2.0, "  ": -3.0,
    "    ": -7.0, " a": -5.0, "the": -6.0, " the": -6.00004, "t": -5.0, "h": -5.0, "e": -4.0, "he": -7.0,
    "\u65e5": -8.0, "\u65e5\u672c": -9.0, "\u672c\u8a9e": -9.5, "\u8a9e": -12.0, "\n": -4.0, "aaaa": -5.5,
    "zq": -1999.0,
    "p": -1.00006,
    "q": -1.0,
    "pq": -2.0001,
}  # fmt: skip
TOKENS = [*SPECIAL, *BYTE_TOKENS, *PIECES]
TYPES = [*SPECIAL.values(), *[BYTE] * 256, *[NORMAL] * len(PIECES)]
SCORES = [*[0.0] * (len(SPECIAL) + 256), *PIECES.values()]
#: llama.cpp's ids of texts; scores are rounded to four places, and of equal ways the longest piece is taken.
EXPECTED = {
    "abc": [260, 264],
    "abcabc": [260, 264, 260, 264],
    "cab": [262, 263],
    "bcab": [264, 263],
    "aaaaaaa": [282, 260, 260, 260],
    "   a": [268, 270],
    "     the": [268, 268, 272],
    "the he": [271, 267, 276],
    "\u65e5\u672c\u8a9e": [277, 279],
    "\u672c": [234, 160, 176],
    "\u8a9e\u672c\u8a9e": [280, 279],
    "x": [124],
    "zq": [126, 285],
    "za\U0001f600b": [126, 260, 244, 163, 156, 132, 261],
    "\ufeffab": [263],
    "ab\ufeff": [263, 243, 191, 195],
    "a\nb": [260, 281, 261],
    "\xe9a": [199, 173, 260],
    "": [],
    "pq": [286],
}


def write(path: Path, **changes: object) -> Path:
    keys = {
        "tokens": TOKENS, "scores": SCORES, "token_type": TYPES, "bos_token_id": 1, "eos_token_id": 2,
        "unknown_token_id": 0, "add_space_prefix": False,
    }  # fmt: skip
    return write_vocabulary(path, "plamo2", "plamo3", **(keys | changes))


def tokenizer(path: Path, **changes: object) -> Tokenizer:
    with open_gguf(write(path, **changes)) as file:
        return tokenizer_from_gguf(file)


@pytest.mark.parametrize("text", EXPECTED)
def test_texts_have_the_ids_of_llama_cpp(text: str, tmp_path: Path) -> None:
    made = tokenizer(tmp_path / "v.gguf")
    found = made.encode(text, add_special=False, parse_special=False)
    assert found == EXPECTED[text]
    assert made.decode(found) == text.removeprefix("\ufeff")


def test_text_cannot_spell_control_tokens(tmp_path: Path) -> None:
    made = tokenizer(tmp_path / "v.gguf")
    assert min(made.encode("<|plamo:op|>", add_special=False, parse_special=False)) >= len(SPECIAL)
    assert made.encode("<|plamo:op|>", add_special=False, parse_special=True) == [3]


def test_the_marked_tokens_are_those_of_plamo_if_the_file_names_none(tmp_path: Path) -> None:
    made = tokenizer(tmp_path / "v.gguf", bos_token_id=None, eos_token_id=None)
    assert (made.bos_id, made.eos_id) == (1, 2)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"scores": None}, "scores' is missing"),
        ({"token_type": [*TYPES[:20], NORMAL, *TYPES[21:]]}, "no token stands for the byte 0x10"),
        ({"tokens": [*TOKENS[:-1], "x" * 257]}, "a token has 257 characters"),
    ],
    ids=["scores", "byte", "long"],
)
def test_damaged_vocabularies_are_refused(changes: dict[str, object], problem: str, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=problem):
        tokenizer(tmp_path / "v.gguf", **changes)
