"""BPE, compared with Hugging Face's pipeline for the same vocabulary, and corner cases."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as HuggingFace

from puna.gguf import open_gguf
from puna.tokenizer import Tokenizer
from puna.tokenizer.patterns import BY_NAME
from tests.tokenizer.vocabularies import (
    BYTE,
    BYTE_TOKENS,
    CONTROL,
    NORMAL,
    USER_DEFINED,
    build,
    gpt2_bytes,
    load,
    rewritten,
)

PRES = (
    "llama-bpe",
    "qwen2",
    *(pytest.param(pre, marks=pytest.mark.slow) for pre in ("gpt-4o", "deepseek-v3", "starcoder", "gpt-2")),
    pytest.param("tekken", marks=pytest.mark.slow),
)

WORDS = ["the", "quick", "Fox's", "12345", "\n\n", "don't===", "naïve", "漢字", "🦙", "...", "x_y", ""]


@pytest.fixture(scope="module", params=PRES)
def both(
    request: pytest.FixtureRequest, test_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, HuggingFace]:
    source = test_data / "vocab" / "gpt-2.gguf"
    ours = load(rewritten(source, tmp_path_factory.mktemp("bpe") / "vocab.gguf", pre=request.param))
    with open_gguf(source) as file:
        tokens = file.get("tokenizer.ggml.tokens").tolist()
        merges = [tuple(merge.split(" ")) for merge in file.get("tokenizer.ggml.merges")]
    pre = BY_NAME[request.param]
    theirs = HuggingFace(
        models.BPE({text: id for id, text in enumerate(tokens)}, merges, ignore_merges=pre.ignore_merges)
    )
    theirs.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(str(step)), "isolated") for step in pre.steps),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return ours, theirs


@pytest.mark.slow
@settings(deadline=None)
@given(
    text=st.one_of(
        st.text(st.characters(max_codepoint=0x17F), max_size=60),
        st.lists(st.sampled_from(WORDS)).map(" ".join),
    )
)
def test_ids_match_hugging_face(both: tuple[Tokenizer, HuggingFace], text: str) -> None:
    ours, theirs = both
    assert ours.encode(text, add_special=False, parse_special=False) == theirs.encode(text).ids


def tiny(tmp_path: Path, **keys: object) -> Tokenizer:
    """Build bytes, `ab`, `abc`, `<x>` (control), `<x>y` (user-defined) and two more control tokens."""
    tokens = [*gpt2_bytes(), "ab", "abc", "<x>", "<x>y", "<|im_end|>", "<b>"]
    given = {
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [NORMAL] * 258 + [CONTROL, USER_DEFINED, NORMAL, CONTROL],
        "merges": ["a b", "ab c"],
        "bos_token_id": 261,
        **keys,
    }
    return build(tmp_path / "tiny.gguf", "gpt2", **given)


def test_merges_are_applied_by_rank(tmp_path: Path) -> None:
    assert tiny(tmp_path).encode("abcab b", add_special=False) == [257, 256, 32, ord("b")]


def test_spellings_of_control_tokens_are_plain_text_unless_parsed(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path)
    assert tokenizer.encode("a<x>", add_special=False) == [ord("a"), 258]
    plain = [ord(character) for character in "a<x>"]
    assert tokenizer.encode("a<x>", add_special=False, parse_special=False) == plain


def test_the_longest_added_token_wins_whatever_its_id(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path)
    assert tokenizer.encode("<x>y<x>", add_special=False) == [259, 258]


def test_user_defined_tokens_are_recognised_even_when_not_parsed(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path)
    assert tokenizer.encode("<x>y", add_special=False, parse_special=False) == [259]


def test_a_normal_token_spelled_like_an_end_is_a_control_token(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path)
    assert 260 in tokenizer.eos_ids
    assert tokenizer.is_control(260)
    assert tokenizer.encode("<|im_end|>", add_special=False) == [260]
    assert 260 not in tokenizer.encode("<|im_end|>", add_special=False, parse_special=False)


def test_control_tokens_decode_to_their_spelling(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path)
    assert tokenizer.piece(258) == b"<x>"
    assert tokenizer.token(258) == "<x>"
    assert tokenizer.decode([257, 258]) == "abc<x>"


def test_every_byte_has_a_piece(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path)
    assert [tokenizer.piece(id) for id in range(256)] == [bytes([byte]) for byte in range(256)]


def test_a_repeated_merge_keeps_its_first_rank(tmp_path: Path) -> None:
    tokens = [*gpt2_bytes(), "ab", "bc"]
    tokenizer = build(tmp_path / "v.gguf", "gpt2", pre="gpt-2", tokens=tokens, merges=["a b", "b c", "a b"])
    assert tokenizer.encode("abc", add_special=False) == [256, ord("c")]


def test_merges_without_a_resulting_token_are_ignored(tmp_path: Path) -> None:
    tokens = [*gpt2_bytes(), "ab"]
    merges = ["b c", "nonsense", "x", "a b", "€ €"]
    tokenizer = build(tmp_path / "v.gguf", "gpt2", pre="gpt-2", tokens=tokens, merges=merges)
    assert tokenizer.encode("abc", add_special=False) == [256, ord("c")]


def test_bytes_without_a_token_are_dropped_but_prevent_merges(tmp_path: Path) -> None:
    tokenizer = build(tmp_path / "v.gguf", "gpt2", pre="gpt-2", tokens=["a", "b", "ab"], merges=["a b"])
    assert tokenizer.encode("abxaxb", add_special=False) == [2, 0, 1]


def test_a_lone_surrogate_is_read_as_the_replacement_character(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path)
    assert tokenizer.decode(tokenizer.encode("a\ud800b", add_special=False)) == "a\ufffdb"
    assert tokenizer.decode(tokenizer.encode("\ud83e\udd99", add_special=False)) == "🦙"


# BPE with SentencePiece's spaces, as in Gemma 4.


def spaced(tmp_path: Path, model: str = "gemma4", **keys: object) -> Tokenizer:
    tokens = ["<unk>", "<bos>", *BYTE_TOKENS, "▁", "a", "b", "▁a", "▁ab", "\n", "\n\n"]
    given = {
        "tokens": tokens,
        "token_type": [2, CONTROL] + [BYTE] * 256 + [NORMAL] * 7,
        "merges": ["▁ a", "▁a b"],
        "bos_token_id": 1,
        **keys,
    }
    return build(tmp_path / "spaced.gguf", model, "gemma4", **given)


@pytest.mark.parametrize("model", ["gemma4", "llama"])
def test_gemma4_merges_characters_and_falls_back_to_bytes(tmp_path: Path, model: str) -> None:
    tokenizer = spaced(tmp_path, model)
    ids = tokenizer.encode(" ab a\n\né", add_special=False)
    assert [tokenizer.token(id) for id in ids] == ["▁ab", "▁a", "\n\n", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(ids) == " ab a\n\né"
    assert not tokenizer.add_bos


def test_gemma4_puts_no_space_before_the_text(tmp_path: Path) -> None:
    tokenizer = spaced(tmp_path)
    assert [tokenizer.token(id) for id in tokenizer.encode("ab", add_special=False)] == ["a", "b"]
