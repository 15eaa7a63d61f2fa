"""`puna tokenize` and `puna bench`, which need no server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.tiny.llama import vocabulary

pytestmark = pytest.mark.e2e

GREEDY = ("--temperature", "0", "--num-predict", "12")


def test_tokenize_prints_ids_and_pieces(shell: Shell, tiny_gguf: Path) -> None:
    tokens = vocabulary()
    expected = [("<|begin|>", "<|begin|>"), ("hello", '"hello"'), ("Ġworld", '" world"')]
    lines = shell.out("tokenize", str(tiny_gguf), "hello", "world").splitlines()
    assert lines == [f"{tokens.index(token):>7}  {shown}" for token, shown in expected]
    bare = shell.out("tokenize", "tiny", "--no-add-special", stdin="hello world").splitlines()
    assert bare == lines[1:]
    found = json.loads(shell.out("tokenize", "tiny", "hello", "world", "--json"))
    assert found == [{"id": tokens.index(token), "text": shown.strip('"')} for token, shown in expected]


def test_tokenize_reads_and_writes_json_lines(shell: Shell) -> None:
    tokens = vocabulary()
    texts = ["hello", " the<|im_end|>"]
    stdin = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    parsed = shell.out("tokenize", "tiny", "--jsonl", "--no-add-special", stdin=stdin)
    assert [json.loads(line) for line in parsed.splitlines()] == [
        {"ids": [tokens.index("hello")]},
        {"ids": [tokens.index("Ġthe"), tokens.index("<|im_end|>")]},
    ]
    plain = shell.out("tokenize", "tiny", "--jsonl", "--no-add-special", "--no-parse-special", stdin=stdin)
    assert tokens.index("<|im_end|>") not in json.loads(plain.splitlines()[1])["ids"]
    broken = shell.run("tokenize", "tiny", "--jsonl", stdin='{"text": "a"}\n{"txt": 1}\n')
    assert broken.returncode == 1
    assert "line 2" in broken.stderr


@pytest.mark.slow
def test_bench_prints_one_json_object(shell: Shell, tiny_gguf: Path) -> None:
    printed = shell.out(
        "bench", str(tiny_gguf), "--json",
        *("--prompt", "16", "--generate", "4", "--parallel", "1,2", "--threads", "1", "--repetitions", "2"),
    )  # fmt: skip
    result = json.loads(printed)
    assert (result["model"], result["threads"]) == (str(tiny_gguf), 1)
    assert [(item["test"], item["parallel"]) for item in result["results"]] == [
        ("pp16", 1), ("tg4", 1), ("pp16", 2), ("tg4", 2),
    ]  # fmt: skip
    assert all(
        len(item["tokens_per_second"]) == 2 and min(item["tokens_per_second"]) > 0
        for item in result["results"]
    )
