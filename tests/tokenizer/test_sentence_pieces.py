"""SentencePiece vocabularies, compared with a slow, direct implementation of the rules."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puna.tokenizer import Tokenizer
from tests.tokenizer.vocabularies import (
    BYTE,
    BYTE_TOKENS,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    build,
)

HEAD = ["<unk>", "<s>", "</s>", *BYTE_TOKENS]
HEAD_TYPES = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256


def merged(text: str, scores: dict[str, float]) -> list[str]:
    """Join the adjacent pair whose joined text has the best score until none is left; return the symbols.

    Among equal scores the leftmost pair is joined.
    """
    symbols = list(text)
    while True:
        best: tuple[float, int] | None = None
        for i in range(len(symbols) - 1):
            score = scores.get(symbols[i] + symbols[i + 1])
            if score is not None and (best is None or score > best[0]):
                best = (score, i)
        if best is None:
            return symbols
        symbols[best[1] : best[1] + 2] = [symbols[best[1]] + symbols[best[1] + 1]]


def expected(text: str, ids: dict[str, int], scores: dict[str, float]) -> list[int]:
    found: list[int] = []
    for symbol in merged(text.replace(" ", "▁"), scores):
        if symbol in scores:
            found.append(ids[symbol])
        else:
            found += [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
    return found


pieces = st.lists(st.text(alphabet="ab▁é\n", min_size=1, max_size=5), min_size=1, max_size=25, unique=True)


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(data=st.data(), words=pieces, text=st.text(alphabet="ab é\nz日", max_size=30))
def test_merges_are_applied_by_score_then_from_the_left(
    data: st.DataObject, words: list[str], text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    words = ["▁", *(word for word in words if word != "▁")]  # without it, a space is decoded as U+2581
    values = data.draw(
        st.lists(st.integers(-4, 0).map(float), min_size=len(words), max_size=len(words)), label="scores"
    )  # few distinct values, so that many are equal
    tokens = HEAD + words
    tokenizer = build(
        tmp_path_factory.mktemp("spm") / "v.gguf",
        "llama",
        tokens=tokens,
        scores=[0.0] * len(HEAD) + values,
        token_type=HEAD_TYPES + [NORMAL] * len(words),
        add_space_prefix=False,
    )
    ids = {token: id for id, token in enumerate(tokens)}
    got = tokenizer.encode(text, add_special=False, parse_special=False)
    assert got == expected(text, ids, dict(zip(words, values, strict=True)))
    assert tokenizer.decode(got) == text


def small(tmp_path: Path, **keys: object) -> Tokenizer:
    words = ["▁", "a", "b", "▁a", "ab", "<x>", "  "]
    given = {
        "tokens": HEAD + words,
        "scores": [0.0] * len(HEAD) + [-1.0, -2.0, -3.0, -4.0, -5.0, 0.0, 0.0],
        "token_type": HEAD_TYPES + [NORMAL] * 5 + [CONTROL, USER_DEFINED],
        **keys,
    }
    return build(tmp_path / "small.gguf", "llama", **given)


def spelled(tokenizer: Tokenizer, text: str, **flags: bool) -> list[str]:
    return [tokenizer.token(id) for id in tokenizer.encode(text, add_special=False, **flags)]


def test_a_space_is_added_before_the_text_and_after_added_tokens(tmp_path: Path) -> None:
    tokenizer = small(tmp_path)
    assert spelled(tokenizer, "a<x>b") == ["▁a", "<x>", "▁", "b"]
    assert tokenizer.decode(tokenizer.encode("a b", add_special=False)) == "a b"
    assert tokenizer.decode(tokenizer.encode(" a", add_special=False)) == " a"


def test_no_space_is_added_if_the_file_disables_it(tmp_path: Path) -> None:
    tokenizer = small(tmp_path, add_space_prefix=False)
    assert spelled(tokenizer, "a<x>b") == ["a", "<x>", "b"]
    assert tokenizer.decode(tokenizer.encode(" a", add_special=False)) == " a"


def test_empty_text_only_has_bos_and_eos(tmp_path: Path) -> None:
    tokenizer = small(tmp_path, add_eos_token=True)
    assert tokenizer.encode("", add_special=False) == []
    assert tokenizer.encode("") == [1, 2]


def test_user_defined_spaces_are_found_in_the_original_text(tmp_path: Path) -> None:
    tokenizer = small(tmp_path, add_space_prefix=False)
    for parse_special in (False, True):
        assert spelled(tokenizer, "a   b", parse_special=parse_special) == ["a", "  ", "▁", "b"]


def test_bytes_without_a_token_are_dropped(tmp_path: Path) -> None:
    tokenizer = build(
        tmp_path / "v.gguf",
        "llama",
        tokens=["<unk>", "a", "<0xC3>"],
        scores=[0.0, -1.0, 0.0],
        token_type=[UNKNOWN, NORMAL, BYTE],
        add_space_prefix=False,
    )
    assert tokenizer.encode("aéa", add_special=False) == [1, 2, 1]


def test_bytes_and_spaces_are_decoded(tmp_path: Path) -> None:
    tokenizer = small(tmp_path)
    assert tokenizer.piece(3 + 0xC3) == b"\xc3"
    assert tokenizer.piece(tokenizer.encode("a", add_special=False)[0]) == b" a"
    assert tokenizer.piece(1) == b"<s>"


def test_bos_and_eos_default_to_the_first_control_tokens(tmp_path: Path) -> None:
    tokenizer = small(tmp_path)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)
    assert tokenizer.add_bos
    assert not tokenizer.add_eos
