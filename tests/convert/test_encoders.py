"""Encoders and what writes after reading, converted, compute what transformers computes with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from puna.batch import Batch
from puna.convert import convert
from puna.gguf import FileType, open_gguf
from puna.model.load import load_model
from tests import forward
from tests.convert.checkpoints import save_words, saved
from tests.model.models.parity import FLOATS, check_close, original, random_tokens
from tests.tiny_bert import VOCABULARY, TinyBert
from tests.tiny_encoders import TinyJinaBertV3, TinyModernBert, TinyNomicBert
from tests.tiny_rerankers import tiny_bge, tiny_bge_gguf, tiny_gte, tiny_gte_gguf
from tests.tiny_t5 import TinyT5, tiny_t5_gguf

ENCODERS: dict[str, Any] = {
    "bert": TinyBert(),
    "jina-bert-v3": TinyJinaBertV3(),
    "modern-bert": TinyModernBert(),
    "nomic-bert": TinyNomicBert(),
}


def with_words(folder: Path, theirs: Any) -> Path:
    save_words(saved(folder, theirs, tokenizer=False))
    return folder


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_computes_what_transformers_does(name: str, tmp_path: Path) -> None:
    theirs = original(ENCODERS[name])
    folder = with_words(tmp_path / "checkpoint", theirs)
    modules = [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    convert(folder, tmp_path / "m.gguf", FileType.F32)
    ours = load_model(tmp_path / "m.gguf")
    assert ours.pooling == "mean"
    with open_gguf(tmp_path / "m.gguf") as file:
        ids = [file.metadata[f"tokenizer.ggml.{key}_token_id"] for key in ("bos", "eos")]
        assert ids == [VOCABULARY.index(text) for text in ("[CLS]", "[SEP]")]
    cache = ours.make_cache(sequences=1, context=64, types=FLOATS)
    tokens = random_tokens(ours, 40, 3)
    batch = Batch.of(tokens, list(range(40)), [0] * 40, list(range(40)))
    with torch.inference_mode():
        cache.start_forward(batch)
        expected = theirs(torch.tensor([tokens])).last_hidden_state[0]
        check_close(ours, forward.states_of(ours.model, batch, cache), expected)


def check_same_tensors(ours: Path, expected: Path) -> None:
    """That a file has the tensors of another, which other tests hold against transformers."""
    with open_gguf(ours) as found, open_gguf(expected) as wanted:
        assert found.tensors.keys() == wanted.tensors.keys()
        for name in wanted.tensors:
            np.testing.assert_array_equal(found.array(name), wanted.array(name), err_msg=name)


def test_classifiers_are_converted(tmp_path: Path) -> None:
    for name, theirs, write in (
        ("bge", tiny_bge(), tiny_bge_gguf), ("gte", tiny_gte("cls"), tiny_gte_gguf),
    ):  # fmt: skip
        convert(with_words(tmp_path / name, theirs), tmp_path / "ours.gguf", FileType.F32)
        check_same_tensors(tmp_path / "ours.gguf", write(tmp_path / f"{name}.gguf", theirs))


@pytest.mark.parametrize(
    "tiny",
    [TinyT5(), TinyT5(tied=True), TinyT5(every_layer=True), TinyT5(decoder=False)],
    ids=["t5", "tied", "umt5", "encoder"],
)
def test_t5_is_converted(tiny: TinyT5, tmp_path: Path) -> None:
    theirs = tiny.build()
    convert(saved(tmp_path / "checkpoint", theirs), tmp_path / "ours.gguf", FileType.F32)
    expected = tiny_t5_gguf(tmp_path / "expected.gguf", tiny, model=theirs)
    check_same_tensors(tmp_path / "ours.gguf", expected)
    with open_gguf(tmp_path / "ours.gguf") as found, open_gguf(expected) as wanted:
        for key in wanted.metadata:
            if key.startswith(wanted.architecture) and not key.endswith("context_length"):
                assert found.metadata[key] == pytest.approx(wanted.metadata[key]), key
