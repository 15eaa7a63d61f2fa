"""RWKV's tokenizer: the longest token at each byte; the file spells tokens as Python literals."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puna.errors import TokenizerError
from puna.tokenizer import Tokenizer
from tests.tokenizer.vocabularies import CONTROL, NORMAL, UNUSED, build

#: Tokens besides all bytes: prefixes of one another, halves of characters, bytes that `repr` escapes.
WORDS = (
    b"\n\n", b"\r\n", b" the", b" there", b"the", b"there", b"them", b"it's", b'say "', b"'\"", b"\\", b"\\x",
    b"\xe6\xbc", b"\xe6\xbc\xa2", b"\xbc\xa2", "é".encode(), b"\x00\x01", b"    ", b"        ", b"a" * 100,
)  # fmt: skip
TOKENS = [b"<s>", *dict.fromkeys([*(bytes([byte]) for byte in range(256)), *WORDS])]
TEXTS = ["<s>", *(repr(token)[2:-1] for token in TOKENS[1:]), "[PAD1]"]
KINDS = [CONTROL, *([NORMAL] * (len(TOKENS) - 1)), UNUSED]


def by_definition(text: str) -> list[int]:
    """Encode by taking the longest token that the rest of the text begins with."""
    ids, rest = [], text.encode()
    while rest:
        longest = max((token for token in TOKENS[1:] if rest.startswith(token)), key=len)
        ids.append(TOKENS.index(longest))
        rest = rest[len(longest) :]
    return ids


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("world") / "world.gguf"
    end = TOKENS.index(b"\n\n")
    ends = {"bos_token_id": 0, "eos_token_id": 0, "eot_token_id": end}
    return build(path, "rwkv", "rwkv7", tokens=TEXTS, token_type=KINDS, **ends)


@given(st.lists(st.sampled_from([word.decode(errors="ignore") for word in WORDS]) | st.text(max_size=8)))
def test_texts_become_the_longest_tokens_and_decode_to_themselves(world: Tokenizer, parts: list[str]) -> None:
    text = "".join(parts)
    ids = world.encode(text, parse_special=False)
    assert ids == by_definition(text)
    assert world.decode(ids) == text


def test_every_token_is_read_as_a_python_bytes_literal(world: Tokenizer) -> None:
    for id in range(1, len(TOKENS)):
        quote = '"' if "'" in TEXTS[id] and '"' not in TEXTS[id] else "'"
        assert world.piece(id) == ast.literal_eval(f"b{quote}{TEXTS[id]}{quote}") == TOKENS[id]


def test_no_tokens_are_added_and_a_blank_line_ends_an_answer(world: Tokenizer) -> None:
    end = TOKENS.index(b"\n\n")
    assert world.encode("<s>the\n\n") == [0, TOKENS.index(b"the"), end]
    assert world.encode("\n\n\n") == [end, TOKENS.index(b"\n")]
    assert world.eos_ids == {0, end}
    assert world.piece(end) == b"\n\n"


def test_a_padding_token_is_not_found_in_text(world: Tokenizer) -> None:
    assert world.encode("[PAD1]") == by_definition("[PAD1]")


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (TEXTS[:66] + TEXTS[67:], r"no token stands for the byte 0x41.*unknown_token_id"),
        ([*TEXTS, "a" * 257], r"a token has 257 bytes; the maximum is 256"),
    ],
)
def test_a_missing_byte_or_too_long_token_is_refused(tokens: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=message):
        build(tmp_path / "bad.gguf", "rwkv", "rwkv7", tokens=tokens)


def test_bytes_without_a_token_become_the_unknown_token(tmp_path: Path) -> None:
    found = build(tmp_path / "few.gguf", "rwkv", "rwkv7", tokens=["<unk>", "a", "ab"], unknown_token_id=0)
    assert found.encode("abcaé") == [2, 0, 1, 0, 0]
