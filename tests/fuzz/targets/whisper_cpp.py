"""Files of whisper.cpp with damaged bytes: refused, or converted to a file that can be opened."""

from __future__ import annotations

import random
from pathlib import Path

from puna.convert.whisper_cpp import convert_whisper_cpp
from puna.gguf import GGMLType, open_gguf
from puna.model.header import check_file
from tests.fuzz.case import Bounds
from tests.fuzz.hostile_bytes import damaged
from tests.model.models.parity import original
from tests.tiny.whisper import TinyWhisper
from tests.tiny.whisper_cpp import header, token_part, whisper_cpp_file

BOUNDS = Bounds(seconds=8.0, memory=128 << 20)

_CONFIG = TinyWhisper(
    layers=1, decoder_layers=1, hidden=32, feed_forward=32, decoder_feed_forward=32, positions=20
)
_FILES = [
    whisper_cpp_file(_CONFIG, original(_CONFIG), kind) for kind in (GGMLType.F32, GGMLType.F16, GGMLType.Q8_0)
]
_WORDS = (b"", b"a" * 64, b"ab" * 30, b"<|endoftext|>", b"\xff\xfe", b" ")


def fuzz(dice: random.Random, folder: Path) -> None:
    whole = dice.choice(_FILES)
    start = len(header(_CONFIG))
    content = damaged(dice, whole[: start + 4000]) + whole[start + 4000 :]
    if dice.random() < 0.4:
        content = damaged(dice, whole)
    if dice.random() < 0.3:
        texts = [dice.choice(_WORDS) for _ in range(dice.choice((1, 300, 3000)))]
        content = header(_CONFIG, changes={0: len(texts) + 40}) + token_part(texts) + whole[-3000:]
    (folder / "ggml.bin").write_bytes(content)
    convert_whisper_cpp(folder / "ggml.bin", folder / "m.gguf")
    with open_gguf(folder / "m.gguf") as file:
        assert file.architecture == "whisper"
    check_file(folder / "m.gguf")
