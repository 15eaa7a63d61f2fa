"""Well-known tokenizers, compared with the ids of the originals (llama.cpp's public test set)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puna.tokenizer import Tokenizer
from tests.tokenizer.vocabularies import PUBLIC, load, pairs


@pytest.fixture(scope="module", params=PUBLIC)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tokenizer(name: str, test_data: Path) -> Tokenizer:
    return load(test_data / "vocab" / f"{name}.gguf")


@pytest.mark.slow
def test_every_test_string_has_exactly_the_published_ids(
    name: str, tokenizer: Tokenizer, test_data: Path
) -> None:
    cases = pairs(test_data, name)
    assert len(cases) > 40
    wrong = {
        text: tokenizer.encode(text, add_special=False, parse_special=False)
        for text, ids in cases
        if tokenizer.encode(text, add_special=False, parse_special=False) != ids
    }
    assert not wrong


@pytest.mark.slow
def test_cached_words_have_the_same_ids(name: str, tokenizer: Tokenizer, test_data: Path) -> None:
    text = "\n".join(text for text, _ in pairs(test_data, name))
    first = tokenizer.encode(text)
    assert tokenizer.encode(text) == first
    assert load(test_data / "vocab" / f"{name}.gguf").encode(text) == first


def test_the_test_strings_survive_the_round_trip(name: str, tokenizer: Tokenizer, test_data: Path) -> None:
    if tokenizer.name == "bert":
        pytest.skip("WordPiece forgets case, accents and white space")
    for text, ids in pairs(test_data, name):
        assert tokenizer.decode(ids) == text


# StarCoder's vocabulary lacks the first bytes of planes 4 and up, which are unassigned.
texts = st.text(st.characters(exclude_categories=["Cs"], max_codepoint=0x3FFFF))


@settings(deadline=None)
@given(text=texts)
def test_any_unicode_text_survives_the_round_trip(tokenizer: Tokenizer, text: str) -> None:
    if tokenizer.name == "bert":
        return
    if "▁" in text and tokenizer.name == "llama":
        return  # U+2581, SentencePiece's space, is decoded as a space
    if tokenizer.pre == "starcoder" and any(byte >= 0xF1 for byte in text.encode()):
        return  # its vocabulary lacks the first bytes of unassigned planes
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    assert tokenizer.decode(ids) == text


@settings(deadline=None)
@given(text=st.text(alphabet="<|user>/s[MASK]endoftx \n"), add_special=st.booleans())
def test_text_becomes_a_control_token_only_on_request(
    tokenizer: Tokenizer, text: str, add_special: bool
) -> None:
    ids = tokenizer.encode(text, add_special=add_special, parse_special=False)
    framed = [tokenizer.bos_id] * (add_special and tokenizer.add_bos)
    if framed:
        assert ids[:1] == framed
        ids = ids[1:]
    if add_special and tokenizer.add_eos:
        ids = ids[:-1]
    assert not any(tokenizer.is_control(id) for id in ids)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "bos", "eos", "ends", "adds"),
    [  # as llama.cpp reports for the same files; it has no end-of-sequence token for BERT
        ("bert-bge", 101, 102, {0, 102}, (True, True)),
        ("deepseek-llm", 100000, 100001, {100001}, (True, False)),
        ("gpt-2", 50256, 50256, {50256}, (False, False)),
        ("llama-spm", 1, 2, {2}, (True, False)),
        ("phi-3", 1, 32000, {2, 32000, 32007}, (True, False)),
        ("starcoder", 0, 0, {0, 4}, (False, False)),
    ],
)
def test_bos_and_eos_are_those_of_llama_cpp(
    test_data: Path, which: str, bos: int, eos: int, ends: set[int], adds: tuple[bool, bool]
) -> None:
    tokenizer = load(test_data / "vocab" / f"{which}.gguf")
    assert (tokenizer.bos_id, tokenizer.eos_id) == (bos, eos)
    assert tokenizer.eos_ids == ends
    assert (tokenizer.add_bos, tokenizer.add_eos) == adds
    framed = tokenizer.encode("a")
    assert (framed[0] == bos, framed[-1] == eos) == adds


def test_phi3_removes_the_newline_after_its_markers(test_data: Path) -> None:
    phi3 = load(test_data / "vocab" / "phi-3.gguf")
    assert phi3.encode("<|user|>\n hi<|end|>\n<|assistant|>", add_special=False) == phi3.encode(
        "<|user|>hi<|end|><|assistant|>", add_special=False
    )
    assert phi3.encode("<s> hi", add_special=False) != phi3.encode("<s>hi", add_special=False)
