"""Unigram vocabularies compared with sentencepiece, and with transformers for T5 and XLM-RoBERTa."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st

from puna.errors import TokenizerError
from puna.tokenizer import Tokenizer
from puna.tokenizer.sentence_piece import LONGEST_REPLACEMENT
from tests.tokenizer.unigrams import WORDS, keys, realigned, trained
from tests.tokenizer.vocabularies import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, build

KINDS: dict[str, dict[str, Any]] = {
    "like T5's": {"normalization_rule_name": "nmt_nfkc"},
    "with bytes": {"byte_fallback": True, "vocab_size": 400},
    "with every space": {"remove_extra_whitespaces": False, "normalization_rule_name": "nfkc_cf"},
    "without a prefix": {"add_dummy_prefix": False, "normalization_rule_name": "identity"},
}
train = functools.cache(lambda kind: trained(**KINDS[kind]))
reference = functools.cache(lambda kind: sentencepiece.SentencePieceProcessor(model_proto=train(kind)))

texts = st.lists(
    st.sampled_from([*WORDS, " ", "  ", "\t", "\n", "\u3000", "\u00a0", "▁", "", "é", "ﷺ", "🦙", "zz", "!"])
    | st.text(max_size=3),
    max_size=12,
).map("".join)


@functools.cache
def ours(folder: Path, kind: str) -> Tokenizer:
    return build(folder / "unigram.gguf", "t5", "t5", **keys(train(kind)))


@pytest.fixture(scope="module", params=KINDS, ids=[name.replace(" ", "-") for name in KINDS])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("unigram")


@pytest.mark.slow
@settings(max_examples=200)
@given(text=texts)
@example(text=" ")
@example(text="🦙🦙 the🦙")
@example(text="\0a\0")
def test_ids_match_sentencepiece(kind: str, folder: Path, text: str) -> None:
    tokenizer = ours(folder, kind)
    theirs = reference(kind)
    assert tokenizer.encode(text, add_special=False, parse_special=False) == theirs.encode(text)
    assert tokenizer.encode(text, parse_special=False) == [*theirs.encode(text), 1]


def sentences(count: int) -> list[str]:
    chosen = random.Random(7)
    parts = [*WORDS, "<extra_id_0>", "</s>", "  ", "🦙", "?", "zz", "ﷺ", "<mask>"]
    return ["".join(chosen.choices([*parts, " ", " ", " "], k=chosen.randint(1, 20))) for _ in range(count)]


def hugging_face(name: str, own: dict[str, Any], **settings: Any) -> Any:
    import transformers

    return getattr(transformers, name)(
        vocab=list(zip(own["tokens"], own["scores"], strict=True)),
        _spm_precompiled_charsmap=bytes(own["precompiled_charsmap"]),
        **settings,
    )


def test_ids_match_t5(tmp_path: Path) -> None:
    own = keys(train("like T5's"))
    extra = [f"<extra_id_{n}>" for n in range(2)]
    own["tokens"] += extra
    own["scores"] += [-1000.0] * 2
    own["token_type"] += [USER_DEFINED] * 2
    theirs = hugging_face("T5Tokenizer", own, extra_ids=2)
    tokenizer = build(tmp_path / "t5.gguf", "t5", "t5", **own)
    for text in sentences(200):
        assert tokenizer.encode(text) == theirs(text).input_ids, text


def test_ids_match_xlm_roberta(tmp_path: Path) -> None:
    own = realigned(train("like T5's"))
    theirs = hugging_face("XLMRobertaTokenizer", own)
    tokenizer = build(tmp_path / "xlmr.gguf", "t5", "jina-bert-v3", **own)
    for text in sentences(200):
        assert tokenizer.encode(text) == theirs(text).input_ids, text


def test_decoding_gives_the_normalised_text_back(folder: Path) -> None:
    tokenizer = ours(folder, "like T5's")
    ids = tokenizer.encode("the quick  ﬁne １２３ story", add_special=False)
    assert tokenizer.decode(ids) == "the quick fine 123 story"
    assert ours(folder, "with bytes").decode(ours(folder, "with bytes").encode("🦙")) == "🦙</s>"


def small(tmp_path: Path, **changed: Any) -> Tokenizer:
    own = {
        "tokens": ["<pad>", "</s>", "<unk>", "▁", "a", "▁a", "aa", "<0x41>", "<x>"],
        "scores": [0.0, 0.0, 0.0, -2.0, -3.0, -4.0, -5.5, 0.0, 0.0],
        "token_type": [CONTROL, CONTROL, UNKNOWN, NORMAL, NORMAL, NORMAL, NORMAL, BYTE, USER_DEFINED],
    }
    return build(tmp_path / "small.gguf", "t5", "t5", **(own | changed))


def test_special_tokens_are_found_by_their_types(tmp_path: Path) -> None:
    tokenizer = small(tmp_path)
    assert (tokenizer.eos_id, tokenizer.unknown_id, tokenizer.bos_id) == (1, 2, None)
    assert tokenizer.encode("aa") == [5, 4, 1]
    assert small(tmp_path, scores=[0.0, 0, 0, -2, -3, -4, -0.5, 0, 0]).encode("aa") == [3, 6, 1]


def test_characters_without_a_token_become_one_unknown_token(tmp_path: Path) -> None:
    # A byte token is not used unless all 256 exist.
    assert small(tmp_path).encode("Aé!a", add_special=False) == [3, 2, 4]


def test_user_defined_tokens_are_found_before_normalisation(tmp_path: Path) -> None:
    assert small(tmp_path).encode("a<x>a", add_special=False, parse_special=False) == [5, 8, 5]


@pytest.mark.parametrize("removed", [True, False])
def test_text_after_other_text_gets_no_space_and_keeps_its_own(tmp_path: Path, removed: bool) -> None:
    tokenizer = small(tmp_path, remove_extra_whitespaces=removed)
    for text, ids in (("aa", [6]), (" aa", [5, 4]), ("a a", [4, 5])):
        assert tokenizer.encode(text, add_special=False, first=False) == ids
    assert tokenizer.encode("aa", add_special=False) == [5, 4]


def test_control_tokens_are_parsed_only_on_request(tmp_path: Path) -> None:
    tokenizer = small(tmp_path)
    assert 1 not in tokenizer.encode("</s>", add_special=False, parse_special=False)
    assert tokenizer.encode("</s>", add_special=False) == [1]


LEAF, VALUE = 1 << 8, 1 << 31


def charsmap(root: int = 1, place: int = 0, *, size: int = 1024, replacements: bytes = b"x\0") -> np.ndarray:
    """Return a table that replaces "a" by the bytes at `place`; its trie's root has children at `root`."""
    units = np.zeros(256, "<u4")
    units[0] = root << 10
    units[1 ^ ord("a")] = (1 ^ ord("a") ^ 64) << 10 | LEAF | ord("a")  # the value is at 64
    units[64] = VALUE | place
    return np.frombuffer(size.to_bytes(4, "little") + units.tobytes() + replacements, np.uint8)


def test_a_character_table_replaces_characters(tmp_path: Path) -> None:
    tokenizer = small(tmp_path, precompiled_charsmap=charsmap(place=2, replacements=b"x\0aa\0"))
    assert tokenizer.encode("a", add_special=False) == [5, 4]
    assert small(tmp_path, precompiled_charsmap=charsmap(replacements=b"\0")).encode("a") == [1]


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        (np.array([1, 2], np.uint8), "do not fit"),
        (charsmap(size=2000), "do not fit"),
        (charsmap(size=1023), "do not fit"),
        (charsmap(replacements=b"x"), "is not terminated"),
        (charsmap(replacements=b""), "is not terminated"),
        (charsmap(1024), "leaves the trie"),
        (charsmap(place=2), "no replacement"),
        (charsmap(replacements=b"x" * (LONGEST_REPLACEMENT + 1) + b"\0"), "more than 128 bytes"),
        ([0.5], "not an array of bytes"),
        ("text", "not an array of bytes"),
    ],
)
def test_a_character_table_with_offsets_outside_itself_is_refused(
    tmp_path: Path, table: Any, complaint: str
) -> None:
    with pytest.raises(TokenizerError, match=f"precompiled_charsmap.*{complaint}"):
        small(tmp_path, precompiled_charsmap=table)


def test_a_vocabulary_without_an_unknown_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="unknown_token_id"):
        small(tmp_path, token_type=[CONTROL] * 3 + [NORMAL] * 6)
    with pytest.raises(TokenizerError, match="scores"):
        small(tmp_path, scores=None)
