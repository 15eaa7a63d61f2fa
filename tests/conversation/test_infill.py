"""Prompts for a gap, as llama.cpp's server documents them."""

from __future__ import annotations

from pathlib import Path

import pytest

from puna.conversation.infill import infill_tokens
from puna.errors import UnavailableError
from puna.protocol import Excerpt, Infill
from puna.tokenizer import Tokenizer
from tests.tokenizer.vocabularies import CONTROL, NORMAL, build, gpt2_bytes

AROUND = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
FILES = ["<|repo_name|>", "<|file_sep|>"]


def made(tmp_path: Path, specials: list[str], **keys: object) -> Tokenizer:
    given = {
        "tokens": [*gpt2_bytes(), *specials],
        "merges": ["a b"],
        "pre": "gpt-2",
        "token_type": [NORMAL] * 256 + [CONTROL] * len(specials),
        "add_bos_token": "<b>" in specials,
        **keys,
    }
    return build(tmp_path / "v.gguf", "gpt2", "llama", **given)


def written(tokenizer: Tokenizer, gap: Infill, context: int = 1000, num_predict: int = -1) -> str:
    return tokenizer.decode(infill_tokens(gap, tokenizer, context, num_predict)[0])


def test_extra_files_follow_the_repositorys_name(tmp_path: Path) -> None:
    tokenizer = made(tmp_path, [*AROUND, *FILES])
    gap = Infill(before="a\n", line="  b", after="c\n", extra=[Excerpt("x", "x.py"), Excerpt("y")])
    assert written(tokenizer, gap) == (
        "<|repo_name|>myproject\n<|file_sep|>x.py\nx<|file_sep|>tmp\ny<|file_sep|>filename\n"
        "<|fim_prefix|>a\n  b<|fim_suffix|>c\n<|fim_middle|>"
    )


def test_without_tokens_for_files_extra_text_comes_first_after_bos(tmp_path: Path) -> None:
    tokenizer = made(tmp_path, [*AROUND, "<b>"], bos_token_id=259)
    gap = Infill(before="a", after="c", extra=[Excerpt("x", "x.py")])
    assert written(tokenizer, gap) == (
        "<b>\n\n--- snippet ---\n\nx<|fim_prefix|>a<|fim_suffix|>c<|fim_middle|>"
    )


def test_code_cannot_spell_the_tokens(tmp_path: Path) -> None:
    tokenizer = made(tmp_path, AROUND)
    tokens, _ = infill_tokens(Infill(before=AROUND[2], after=""), tokenizer, 1000, -1)
    assert tokens.count(tokenizer.id_of(AROUND[2])) == 1


def test_the_nearest_text_stays_and_dropped_tokens_are_counted(tmp_path: Path) -> None:
    tokenizer = made(tmp_path, AROUND)
    gap = Infill(before="abcdefghijklmnop", after="qrstuvwxyz")
    tokens, dropped = infill_tokens(gap, tokenizer, 24, 8)  # 16 around the gap, 4 of them for marks
    assert tokenizer.decode(tokens) == "<|fim_prefix|>hijklmnop<|fim_suffix|>qrs<|fim_middle|>"
    assert dropped == 14
    tokens, dropped = infill_tokens(Infill(before="a", after="q" * 20), tokenizer, 24, 8)
    assert tokenizer.decode(tokens) == f"<|fim_prefix|>a<|fim_suffix|>{'q' * 11}<|fim_middle|>"
    assert dropped == 9


def test_extra_text_keeps_its_place_while_code_is_typed(tmp_path: Path) -> None:
    tokenizer = made(tmp_path, AROUND)
    extra = [Excerpt("x" * 5000)]
    begins = {
        written(tokenizer, Infill(before="a" * typed, after="", extra=extra), 4096, 64).partition("<|fim")[0]
        for typed in (1, 2, 500)
    }
    assert len(begins) == 1
    assert len(begins.pop()) == (4096 - 64) / 2


def test_models_that_were_not_trained_for_it_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="this model does not fill in"):
        infill_tokens(Infill(before="a", after="b"), made(tmp_path, AROUND[:2]), 100, -1)
