"""WordPiece compared with Hugging Face's BERT pipeline and published examples."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFace
from tokenizers import models, normalizers, pre_tokenizers

from puna.gguf import open_gguf
from puna.tokenizer import Tokenizer, longest_match
from tests.tokenizer.vocabularies import CONTROL, NORMAL, UNKNOWN, build, load


@pytest.fixture(scope="module")
def both(test_data: Path) -> tuple[Tokenizer, HuggingFace]:
    path = test_data / "vocab" / "bert-bge.gguf"
    with open_gguf(path) as file:
        tokens = file.get("tokenizer.ggml.tokens").tolist()
    # Restore BERT's own spelling, which marks tokens that continue a word instead of those that start one.
    markers = [text for text in tokens if len(text) > 2 and text[0] == "[" and text[-1] == "]"]
    original = {
        text.removeprefix("▁") if text.startswith("▁") or text in markers else "##" + text: id
        for id, text in enumerate(tokens)
    }
    theirs = HuggingFace(models.WordPiece(original, unk_token="[UNK]", max_input_chars_per_word=10**6))
    theirs.normalizer = normalizers.BertNormalizer(lowercase=True)
    theirs.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return load(path), theirs


@settings(deadline=None)
@given(
    text=st.one_of(
        st.text(max_size=60),
        st.text(st.characters(max_codepoint=0x250), max_size=80),
        st.text(alphabet="unbelievably, naïve TOKENS-漢字 \u0301x²$", max_size=60),
    ),
    long=st.sampled_from([longest_match.LONG_TEXT, 5]),
)
def test_ids_match_hugging_face(both: tuple[Tokenizer, HuggingFace], text: str, long: int) -> None:
    ours, theirs = both
    well_formed = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    with mock.patch.object(longest_match, "LONG_TEXT", long):
        assert ours.encode(text, add_special=False, parse_special=False) == theirs.encode(well_formed).ids


def tiny(tmp_path: Path, **keys: object) -> Tokenizer:
    tokens = ["[UNK]", "[CLS]", "[SEP]", "▁hello", "▁world", "s", "▁!", "▁Hello", "▁é", "▁e"]
    types = [UNKNOWN, CONTROL, CONTROL] + [NORMAL] * 7
    return build(tmp_path / "v.gguf", "bert", "bert", tokens=tokens, token_type=types, **keys)


def test_the_published_example_is_split_as_published(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path)
    assert tokenizer.encode("Hello world!") == [1, 3, 4, 6, 2]
    assert tokenizer.encode("worlds hellos", add_special=False) == [4, 5, 3, 5]


def test_a_word_with_an_unknown_part_is_unknown(tmp_path: Path) -> None:
    assert tiny(tmp_path).encode("hellox world", add_special=False) == [0, 4]


def test_case_and_accents_are_removed_unless_the_file_keeps_them(tmp_path: Path) -> None:
    assert tiny(tmp_path).encode("Hello É", add_special=False) == [3, 9]
    kept = tiny(tmp_path, normalizer_lowercase=False)
    assert kept.encode("Hello é", add_special=False) == [7, 8]
    mixed = tiny(tmp_path, normalizer_strip_accents=False)
    assert mixed.encode("Hello É", add_special=False) == [3, 8]


def test_special_tokens_are_recognised_only_on_request(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path)
    assert tokenizer.encode("[SEP]hello", add_special=False) == [2, 3]
    assert 2 not in tokenizer.encode("[SEP]hello", add_special=False, parse_special=False)


def test_the_misspelt_separator_key_is_read(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path, seperator_token_id=5, cls_token_id=4, bos_token_id=3)
    assert tokenizer.encode("!") == [4, 6, 5]


def test_decoding_joins_words_with_spaces(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path)
    assert tokenizer.decode([3, 5, 4]) == "hellos world"
