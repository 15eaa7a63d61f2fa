"""Settings that files of SmallThinker, PLaMo 3 and RWKV 6 cannot carry are refused; others are read."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from puna.convert import convert
from puna.errors import ConversionError
from puna.gguf import FileType, open_gguf
from puna.tokenizer import tokenizer_from_gguf
from tests.convert.checkpoints import saved
from tests.tiny.seeded import SEEDED


@pytest.mark.parametrize(
    ("name", "settings", "problem"),
    [
        ("smallthinker", {"rope_layout": [1, 0, 1]}, "'rope_layout'"),
        ("smallthinker", {"sliding_window_layout": [1, 1, 1]}, "'rope_layout'|'sliding_window_layout'"),
        ("smallthinker-windows", {"sliding_window_size": 12}, "'sliding_window_size' is 12"),
        ("smallthinker", {"moe_enable_early_router": False}, "'moe_enable_early_router'"),
        ("smallthinker", {"use_qk_norm": True}, "'use_qk_norm'"),
        ("plamo3", {"rope_scaling_factor": 4}, "'rope_scaling_factor' is 4"),
        ("plamo3", {"scale_embedding": True}, "'scale_embedding'"),
        ("plamo3", {"rope_local_theta": None}, "lacks 'rope_local_theta'"),
        ("rwkv6", {"attention_hidden_size": 32}, "'attention_hidden_size' is 32"),
        ("rwkv6", {"head_size_divisor": 4}, "'head_size_divisor' is 4"),
    ],
)
def test_settings_that_no_file_carries_are_refused(
    name: str, settings: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    tiny = SEEDED[name]
    changed = dataclasses.replace(tiny, settings={**tiny.settings, **settings})
    folder = saved(tmp_path / "checkpoint", changed.build())
    with pytest.raises(ConversionError, match=problem):
        convert(folder, tmp_path / "model.gguf")


def lines(*more: Any) -> str:
    """Return a `tokenizer.jsonl` with PLaMo's special tokens, all bytes and `more`."""
    special = [
        ["unk", "UNKNOWN"],
        ["bos", "CONTROL"],
        ["eos", "CONTROL"],
        ["pad", "CONTROL"],
        ["op", "NORMAL"],
    ]
    rows = [[f"<|plamo:{name}|>", 0.0, kind, None] for name, kind in special]
    rows += [[f"<0x{byte:02X}>", 0.0, "BYTE", None] for byte in range(256)]
    return "\n".join(json.dumps(row) for row in (*rows, *more)) + "\n"


def test_the_vocabulary_of_plamo_is_read(tmp_path: Path) -> None:
    folder = saved(tmp_path / "checkpoint", SEEDED["plamo3"].build(), tokenizer=False)
    more = [["the", -5.0, "NORMAL", 1], [" cat", -7.5, "NORMAL", 2]]
    (folder / "tokenizer.jsonl").write_text(lines(*more))
    settings = {"bos_token": "<|plamo:bos|>", "eos_token": "<|plamo:eos|>", "unk_token": "<|plamo:unk|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    convert(folder, tmp_path / "model.gguf", FileType.F32)
    with open_gguf(tmp_path / "model.gguf") as file:
        made = tokenizer_from_gguf(file)
    assert made.encode("the cat", add_special=False, parse_special=False) == [261, 262]
    assert (made.bos_id, made.eos_id, made.eos_ids) == (1, 2, {2, 4})


@pytest.mark.parametrize("line", ['"the"', '["the"]', '["the", true, "NORMAL"]', "[", '["x", "1", "NORMAL"]'])
def test_invalid_lines_of_the_vocabulary_are_named(line: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "checkpoint", SEEDED["plamo3"].build(), tokenizer=False)
    (folder / "tokenizer.jsonl").write_text(lines() + line)
    with pytest.raises(ConversionError, match=r"tokenizer\.jsonl: line 262 is"):
        convert(folder, tmp_path / "model.gguf")
