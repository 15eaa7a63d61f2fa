"""T5, converted by us and by llama.cpp's converter."""

from __future__ import annotations

from pathlib import Path

import pytest

from puna.convert import convert
from puna.gguf import FileType
from tests.convert.checkpoints import saved
from tests.parity.convert.conversion import PEERS, Lineage, theirs
from tests.tiny.t5 import TinyT5

pytestmark = PEERS


@pytest.mark.parametrize("tied", [False, True])
def test_t5_is_that_of_llama_cpp(tied: bool, tmp_path: Path) -> None:
    folder = saved(tmp_path / "checkpoint", TinyT5(tied=tied, layers=3, decoder_layers=3).build())
    convert(folder, tmp_path / "ours.gguf", FileType.F32)
    Lineage(("t5",)).check_same(tmp_path / "ours.gguf", theirs(folder, tmp_path / "theirs.gguf"))
