from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from puna.gguf import GGMLType, fingerprint
from tests.tiny.llama import TinyLlama, tiny_llama_gguf


def test_copies_and_other_descriptions_have_the_same_fingerprint(tmp_path: Path) -> None:
    path = tiny_llama_gguf(tmp_path / "a.gguf")
    found = fingerprint(path)
    assert found.startswith("llama ")
    shutil.copy(path, tmp_path / "b.gguf")
    assert fingerprint(tmp_path / "b.gguf") == found
    assert fingerprint(tiny_llama_gguf(tmp_path / "c.gguf", chat_template="other")) == found


@pytest.mark.parametrize(
    "other", [TinyLlama(seed=1), TinyLlama(rope_base=500.0), TinyLlama(context=512), TinyLlama(layers=1)]
)
def test_other_weights_or_settings_change_the_fingerprint(tmp_path: Path, other: TinyLlama) -> None:
    assert fingerprint(tiny_llama_gguf(tmp_path / "a.gguf")) != fingerprint(
        tiny_llama_gguf(tmp_path / "b.gguf", other)
    )


def test_another_quantisation_changes_the_fingerprint(tmp_path: Path) -> None:
    found = {
        fingerprint(tiny_llama_gguf(tmp_path / f"{kind.name}.gguf", kind=kind))
        for kind in (GGMLType.F32, GGMLType.F16, GGMLType.Q8_0)
    }
    assert len(found) == 3


def test_further_training_of_one_tensor_changes_the_fingerprint(tmp_path: Path) -> None:
    config = TinyLlama()
    model = config.build()
    before = fingerprint(tiny_llama_gguf(tmp_path / "a.gguf", config, model=model))
    model.model.layers[1].mlp.up_proj.weight.data.mul_(1.001)
    assert fingerprint(tiny_llama_gguf(tmp_path / "b.gguf", config, model=model)) != before
