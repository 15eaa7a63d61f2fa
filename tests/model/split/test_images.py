"""Images of a split model: their states reach the layers that read them, wherever these are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from puna.batch import Batch, Image, ImagePart
from puna.kvcache.types import F16_TYPES
from puna.model.load import LoadedModel, load_model
from puna.model.models.qwen3 import Qwen3
from puna.model.models.qwen3vl import Qwen3VL
from puna.model.split import cache as split_cache
from tests.model.split.splitting import split
from tests.tiny.decoders import TinyDecoder, tiny_decoder_gguf
from tests.tiny.mllama import TinyMllama, tiny_mllama_gguf


def qwen3(path: Path) -> Path:
    return tiny_decoder_gguf(path, TinyDecoder("qwen3", {"num_hidden_layers": 3, "head_dim": 16}))


def mllama(path: Path) -> Path:
    return tiny_mllama_gguf(path, TinyMllama(layers=5, cross_layers=(1, 3)))


def logits(loaded: LoadedModel, rows: int, width: int) -> list[np.ndarray]:
    """Return logits of a text with an image of six entries in `rows` rows, and of a token after it."""
    cache = loaded.model.make_cache(sequences=2, context=64, capacity=128, types=F16_TYPES)
    states = np.random.default_rng(1).normal(size=(6, width)).astype(np.float32)
    image = Image(7, None, 6, states)
    ops, found = loaded.ops, []
    for begin, count in ((0, 40), (40, 1)):
        batch = Batch.of([*range(3, 3 + count)], [*range(begin, begin + count)], [1] * count, [count - 1])
        if not begin:
            batch.payloads = [(12, ImagePart(image, 0, 6))]
            batch.spans = [(12, 12 + rows)] if rows > 1 else []
        cache.start_forward(batch)
        found.append(ops.numpy(loaded.model.forward(batch.on(ops), cache)).copy())
    cache.close()
    return found


@pytest.mark.parametrize(
    ("make", "rows", "states"),
    [(qwen3, 6, 3), (mllama, 1, 1)],
    ids=["deepstack", "cross-attention"],
)
def test_layers_of_all_stages_read_images(
    make: Callable[[Path], Path],
    rows: int,
    states: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(split_cache, "ROWS_TOGETHER", 8)
    for name in ("after_layer", "reads_images", "_nothing"):  # all that the language model of Qwen3-VL adds
        monkeypatch.setattr(Qwen3, name, vars(Qwen3VL)[name], raising=False)
    path = make(tmp_path / "model.gguf")
    whole = load_model(path)
    model: Any = whole.model
    width = model.options.hidden_size * states
    expected = logits(whole, rows, width)
    for place in range(1, model.options.block_count):
        with split(path, [place]) as parts:
            found = logits(parts.loaded, rows, width)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=f"cut before {place}")
