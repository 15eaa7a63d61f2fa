"""BOS, EOS and end-of-generation tokens, by the file's keys and by spelling."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from puna.tokenizer import Tokenizer
from puna.tokenizer.special_ids import GapIds
from tests.tokenizer.vocabularies import CONTROL, NORMAL, build, gpt2_bytes


def made(
    tmp_path: Path, specials: list[str], *, kind: int = CONTROL, architecture: str = "llama", **keys: object
) -> Tokenizer:
    """Return a byte-level BPE tokenizer without merges; tokens from 256 up are `specials`."""
    tokens = [*gpt2_bytes(), *specials]
    given = {
        "tokens": tokens,
        "merges": ["a b"],
        "pre": "gpt-2",
        "token_type": [NORMAL] * 256 + [kind] * len(specials),
        **keys,
    }
    return build(tmp_path / "v.gguf", "gpt2", architecture, **given)


@pytest.mark.parametrize(
    ("architecture", "adds"),
    [
        ("llama", True),
        ("qwen2", True),
        ("gemma3", True),
        ("gptoss", False),
        ("olmo3", False),
        ("other", False),
    ],
)
def test_bos_is_added_by_default_where_the_model_expects_it(
    tmp_path: Path, architecture: str, adds: bool
) -> None:
    tokenizer = made(tmp_path, ["<b>"], architecture=architecture, bos_token_id=256)
    assert tokenizer.add_bos is adds
    assert tokenizer.encode("a") == ([256] if adds else []) + [ord("a")]


def test_an_unknown_architecture_uses_the_pre_tokenizers_default(tmp_path: Path) -> None:
    tokenizer = made(tmp_path, ["<b>"], architecture="other", pre="llama-bpe", bos_token_id=256)
    assert tokenizer.add_bos


def test_the_files_own_setting_takes_precedence(tmp_path: Path) -> None:
    specials = ["<b>", "<e>"]
    keys = {"bos_token_id": 256, "eos_token_id": 257, "add_bos_token": False, "add_eos_token": True}
    tokenizer = made(tmp_path, specials, **keys)
    assert tokenizer.encode("a") == [ord("a"), 257]
    assert tokenizer.encode("a", add_special=False) == [ord("a")]


def test_no_bos_is_added_if_the_vocabulary_has_none(tmp_path: Path) -> None:
    tokenizer = made(tmp_path, ["<e>"], add_bos_token=True)
    assert tokenizer.bos_id is None
    assert not tokenizer.add_bos
    assert made(tmp_path, ["<e>"], bos_token_id=0xFFFFFFFF).bos_id is None


def test_a_second_bos_is_kept_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = made(tmp_path, ["<b>"], bos_token_id=256)
    with caplog.at_level(logging.WARNING):
        assert tokenizer.encode("<b>a") == [256, 256, ord("a")]
        tokenizer.encode("<b>b")
    assert len(caplog.records) == 1


def test_all_end_keys_count(tmp_path: Path) -> None:
    specials = [f"<{i}>" for i in range(8)]
    tokenizer = made(
        tmp_path,
        specials,
        eos_token_id=256,
        eot_token_id=257,
        eom_token_id=258,
        eos_token_ids=[256, 259],
        fim_pad_token_id=260,
        fim_rep_token_id=261,
        fim_sep_token_id=262,
    )
    assert tokenizer.eos_ids == {256, 257, 258, 259, 260, 261, 262}
    assert tokenizer.eos_id == 256


@pytest.mark.parametrize(
    "text",
    [
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>"),
        *("<|eom_id|>", "<EOT>", "_<EOT>", "<|end_of_text|>", "<end_of_utterance>"),
        *("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
    ],
)
@pytest.mark.parametrize("kind", [CONTROL, NORMAL])
def test_end_tokens_are_recognised_by_spelling(tmp_path: Path, text: str, kind: int) -> None:
    tokenizer = made(tmp_path, ["<b>", text], kind=kind, eos_token_id=256)
    assert tokenizer.eos_ids == {256, 257}


@pytest.mark.parametrize("text", ["</s>", "<eos>", "[EOS]", "<turn|>"])
def test_end_tokens_that_look_like_text_must_be_marked(tmp_path: Path, text: str) -> None:
    assert made(tmp_path, [text]).eos_ids == {256}
    assert made(tmp_path, [text], kind=NORMAL).eos_ids == set()


def test_the_end_of_a_harmony_message_does_not_end_generation(tmp_path: Path) -> None:
    specials = ["<|return|>", "<|call|>", "<|end|>"]
    assert made(tmp_path, specials).eos_ids == {256, 257}
    assert made(tmp_path, specials[1:]).eos_ids == {256, 257}


def test_gemma4_treats_the_old_end_marker_as_html(tmp_path: Path) -> None:
    specials = ["<|tool_response>", "</s>", "<eos>"]
    assert made(tmp_path, specials, eos_token_id=258).eos_ids == {256, 258}


def test_end_tokens_are_control_tokens(tmp_path: Path) -> None:
    tokenizer = made(tmp_path, ["<e>"], kind=NORMAL, eos_token_id=256)
    assert tokenizer.is_control(256)
    assert not tokenizer.is_control(0)


@pytest.mark.parametrize(
    ("specials", "keys", "expected"),
    [
        (["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"], {}, GapIds(256, 257, 258)),
        (["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"], {}, GapIds(256, 257, 258)),
        (
            ["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<reponame>", "<|file_sep|>"],
            {},
            GapIds(256, 257, 258, repository=259, file=260),
        ),
        (
            ["<a>", "<b>", "<c>", "<d>"],
            {f"fim_{part}_token_id": 256 + at for at, part in enumerate(("mid", "suf", "pre", "sep"))},
            GapIds(258, 257, 256, file=259),
        ),
        (
            ["<a>", "<b>", "<c>"],
            {"prefix_token_id": 256, "suffix_token_id": 257, "middle_token_id": 258},
            GapIds(256, 257, 258),
        ),
        (["<|fim_prefix|>", "<|fim_suffix|>"], {}, None),
        ([], {}, None),
    ],
)
def test_tokens_around_a_gap_are_named_or_known_by_their_spelling(
    tmp_path: Path, specials: list[str], keys: dict[str, object], expected: GapIds | None
) -> None:
    assert made(tmp_path, specials, **keys).gap == expected
