"""The core of `puna tokenize`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from puna.errors import RequestError
from puna.tokenizer import Tokenizer
from puna.tokenizer.command import open_tokenizer, printable, token_lines, token_rows
from tests.tokenizer.vocabularies import CONTROL, NORMAL, gpt2_bytes, pairs, write_vocabulary


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    path = write_vocabulary(
        tmp_path / "v.gguf",
        "gpt2",
        tokens=[*gpt2_bytes(), "ab", "<b>"],
        token_type=[NORMAL] * 257 + [CONTROL],
        merges=["a b"],
        pre="gpt-2",
        bos_token_id=257,
    )
    return open_tokenizer(path)


def test_rows_contain_ids_and_pieces(tokenizer: Tokenizer) -> None:
    assert list(token_rows(tokenizer, "ab\n<b>")) == [(257, "<b>"), (256, "ab"), (10, r"\n"), (257, "<b>")]
    bare = token_rows(tokenizer, "<b>", add_special=False, parse_special=False)
    assert list(bare) == [(60, "<"), (98, "b"), (62, ">")]


@pytest.mark.parametrize(
    ("piece", "shown"),
    [
        (b" a", " a"),
        (b"\n\t", r"\n\t"),
        (b"\xe2\x96", r"\xe2\x96"),
        ("é🦙".encode(), "é🦙"),
        (b"\x00", r"\x00"),
    ],
)
def test_each_piece_fits_on_one_line(piece: bytes, shown: str) -> None:
    assert printable(piece) == shown


def test_each_json_line_gets_an_answer(tokenizer: Tokenizer) -> None:
    lines = ['{"text": "ab"}\n', "\n", b'{"text": "\\u00e9", "more": 1}\r\n', '{"text": ""}']
    answers = [json.loads(answer) for answer in token_lines(tokenizer, lines, add_special=False)]
    assert answers == [{"ids": [256]}, {"ids": [0xC3, 0xA9]}, {"ids": []}]
    assert list(token_lines(tokenizer, ['{"text": "<b>"}'])) == ['{"ids": [257, 257]}']


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "line 2: not valid JSON"),
        ('"text"', "line 2: expected an object"),
        ('{"txt": "a"}', "line 2: expected an object"),
        ('{"text": 5}', "line 2: expected an object"),
        ("[" * 100_000, "line 2: "),
        (b'{"text": "\xff"}', "line 2: not valid UTF-8"),
    ],
)
def test_a_bad_line_is_named_after_answering_the_good_ones(
    tokenizer: Tokenizer, line: str | bytes, problem: str
) -> None:
    answers = token_lines(tokenizer, ['{"text": "a"}', line])
    assert json.loads(next(answers)) == {"ids": [257, 97]}
    with pytest.raises(RequestError, match=problem):
        next(answers)


def test_json_lines_have_the_published_ids(test_data: Path) -> None:
    tokenizer = open_tokenizer(test_data / "vocab" / "llama-spm.gguf")
    cases = pairs(test_data, "llama-spm")
    lines = (json.dumps({"text": text}) for text, _ in cases)
    answers = token_lines(tokenizer, lines, add_special=False, parse_special=False)
    assert [json.loads(answer)["ids"] for answer in answers] == [ids for _, ids in cases]
