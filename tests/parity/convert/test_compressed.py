"""DeepSeek V4 as published, converted by us and by llama.cpp's converter."""

from __future__ import annotations

from pathlib import Path

from puna.convert import convert
from puna.gguf import FileType
from tests.model.models.parity import original
from tests.parity.convert.conversion import PEERS, Lineage, theirs
from tests.tiny.compressed import DEEPSEEK_V4_BLOCKS, save_published

pytestmark = PEERS

#: Theirs states the groups of layers that it leaves out, and calls all files with experts MXFP4.
COMPRESSED = Lineage(
    ("compressed",), differing={"deepseek4": {"attention.compress_ratios", "general.file_type"}}
)


def test_keys_and_tensors_are_those_of_llama_cpp(tmp_path: Path) -> None:
    save_published(tmp_path / "checkpoint", original(DEEPSEEK_V4_BLOCKS))
    convert(tmp_path / "checkpoint", tmp_path / "ours.gguf", FileType.F32)
    COMPRESSED.check_same(tmp_path / "ours.gguf", theirs(tmp_path / "checkpoint", tmp_path / "theirs.gguf"))
