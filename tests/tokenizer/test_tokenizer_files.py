"""Missing, damaged and unknown tokenizers, and ids that do not exist."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from puna.errors import RequestError, TokenizerError, UnsupportedModelError
from tests.tokenizer.vocabularies import build, gpt2_bytes

BPE = {"tokens": [*gpt2_bytes(), "ab"], "merges": ["a b"], "pre": "gpt-2"}
SPM = {"tokens": ["<unk>", "<s>", "</s>", "a"], "scores": [0.0] * 4, "token_type": [2, 3, 3, 1]}


def test_a_file_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"v\.gguf: key 'tokenizer\.ggml\.model' is missing"):
        build(tmp_path / "v.gguf", None)


@pytest.mark.parametrize("model", ["plamo", "no_vocab"])
def test_an_unknown_kind_of_vocabulary_is_named(tmp_path: Path, model: str) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"'{model}' is not supported \(supported: gpt2, llama"):
        build(tmp_path / "v.gguf", model, **BPE)


@pytest.mark.parametrize("model", ["gpt2", "llama", "bert", "t5"])
@pytest.mark.parametrize("tokens", [None, "text", [1, 2]])
def test_missing_or_malformed_tokens_are_refused(tmp_path: Path, model: str, tokens: object) -> None:
    with pytest.raises(
        TokenizerError, match=r"tokenizer\.ggml\.tokens' is (missing|not an array of strings)"
    ):
        build(tmp_path / "v.gguf", model, **{**BPE, "tokens": tokens})


def test_too_few_types_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"token_type' has 3 entries for 257 tokens"):
        build(tmp_path / "v.gguf", "gpt2", **BPE, token_type=[1, 1, 1])


def test_types_that_are_not_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="token_type' is not an array of numbers"):
        build(tmp_path / "v.gguf", "gpt2", **BPE, token_type=["a"] * 257)


@pytest.mark.parametrize(
    ("scores", "problem"),
    [
        (None, "is missing"),
        ([0.0], "has 1 entries for 4 tokens"),
        ([float("nan")] * 4, "nan for token 0, which is not a float32 number"),
    ],
)
def test_missing_or_bad_scores_are_refused(tmp_path: Path, scores: object, problem: str) -> None:
    with pytest.raises(TokenizerError, match=problem):
        build(tmp_path / "v.gguf", "llama", **{**SPM, "scores": scores})


def test_missing_merges_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="merges' is missing"):
        build(tmp_path / "v.gguf", "gpt2", **{**BPE, "merges": None})


def test_wordpiece_without_an_unknown_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="unknown_token_id' is missing"):
        build(tmp_path / "v.gguf", "bert", tokens=["▁a"])


@pytest.mark.parametrize("key", ["bos_token_id", "eos_token_id", "eot_token_id", "fim_pad_token_id"])
def test_an_id_beyond_the_vocabulary_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(TokenizerError, match=rf"{key}' is 257, but the last token of the vocabulary is 256"):
        build(tmp_path / "v.gguf", "gpt2", **BPE, **{key: 257})


def test_an_end_id_beyond_the_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="eos_token_ids' contains 999"):
        build(tmp_path / "v.gguf", "gpt2", **BPE, eos_token_ids=[0, 999])


def test_an_id_that_is_not_a_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="bos_token_id' is not a token id"):
        build(tmp_path / "v.gguf", "gpt2", **BPE, bos_token_id="first")


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_the_last_of_several_tokens_with_one_text_is_used(tmp_path: Path, model: str) -> None:
    tokens = [*gpt2_bytes(), "a", "", "ab", "ab"]
    tokenizer = build(
        tmp_path / "v.gguf",
        model,
        tokens=tokens,
        scores=[-1.0] * 260,
        merges=["a b"] if model == "gpt2" else None,
        pre="gpt-2",
        add_space_prefix=False,
    )
    assert tokenizer.encode("ab a"[:2], add_special=False) == [259]
    assert tokenizer.encode("a", add_special=False) == [256]
    assert tokenizer.piece(258) == tokenizer.piece(259) == b"ab"


def test_an_unknown_pre_tokenizer_falls_back_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        unknown = build(tmp_path / "v.gguf", "gpt2", **{**BPE, "pre": "brand-new"})
    assert "unknown pre-tokenizer 'brand-new'" in caplog.text
    default = build(tmp_path / "d.gguf", "gpt2", **{**BPE, "pre": "default"})
    assert unknown.encode("ab 123456, x") == default.encode("ab 123456, x")
    assert unknown.pre == "brand-new"


def test_a_missing_pre_tokenizer_depends_on_the_architecture(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = [*gpt2_bytes(), "12", "123"]
    keys = {"tokens": tokens, "merges": ["1 2", "12 3"]}
    assert build(tmp_path / "v.gguf", "gpt2", "qwen2", **keys).encode("123") == [49, 50, 51]
    assert not caplog.records
    assert build(tmp_path / "v.gguf", "gpt2", "other", **keys).encode("123") == [257]
    assert "'tokenizer.ggml.pre' is missing" in caplog.text


@pytest.mark.parametrize("id", [-1, 257, 10**9])
def test_ids_that_do_not_exist_are_refused(tmp_path: Path, id: int) -> None:
    tokenizer = build(tmp_path / "v.gguf", "gpt2", **BPE)
    for ask in (tokenizer.piece, tokenizer.token, tokenizer.is_control, lambda i: tokenizer.decode([i])):
        with pytest.raises(RequestError, match=rf"token id {id} is outside the vocabulary \(0 to 256\)"):
            ask(id)


def test_tokenizing_does_not_need_torch() -> None:
    code = "import sys, puna.tokenizer.command; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
