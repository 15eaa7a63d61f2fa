"""ARWKV, converted by us and by llama.cpp's converter."""

from __future__ import annotations

from pathlib import Path

import pytest

from puna.convert import convert
from puna.gguf import FileType
from tests.convert.test_rwkv import ARWKV, save_arwkv
from tests.model.models.parity import original
from tests.parity.convert.conversion import PEERS, Lineage, theirs

pytestmark = PEERS

RWKV = Lineage(
    ("rwkv",),
    failing={
        "rwkv7": "invents tensors that the first layer lacks",
        "arwkv7": "knows its own publication alone, which is tested below",
    },
)


@pytest.mark.parametrize("gated", ARWKV, ids=["plain", "gated"])
def test_arwkv_is_that_of_llama_cpp(gated: bool, tmp_path: Path) -> None:
    """Tensors of the first layer that nobody reads may differ."""
    folder = save_arwkv(tmp_path / "checkpoint", ARWKV[gated], original(ARWKV[gated]))
    convert(folder, tmp_path / "ours.gguf", FileType.F32)
    unread = [f"blk.0.time_mix_v{number}.weight" for number in range(3)]
    RWKV.check_same(tmp_path / "ours.gguf", theirs(folder, tmp_path / "theirs.gguf"), unread=unread)
