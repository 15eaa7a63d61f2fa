"""Converted Jina models compute the results of their references."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from puna.batch import Batch
from puna.convert import convert, convert_adapters
from puna.errors import ConversionError, ModelError
from puna.gguf import FileType, GGMLType, open_gguf
from puna.model.load import LoadedModel, load_model
from puna.options import AdapterFile, AdapterScale
from tests.convert.jina import ALPHA, TASKS, merged_jina3, save_jina2, save_jina3
from tests.engine.runs import Run
from tests.model.models.parity import FLOATS, check_close, original, random_tokens
from tests.tiny import forward
from tests.tiny.adapters import adapter_writer
from tests.tiny.encoders import TinyJinaBertV3
from tests.tiny.jina import TinyJinaBertV2
from tests.tiny.words import save_words

KINDS = {
    "gated": ("JinaBertModel", ""),
    "code": ("JinaBertForMaskedLM", "bert."),
    "plain": ("JinaBertForMaskedLM", ""),
}


def check_states(ours: LoadedModel, theirs: Any) -> None:
    tokens = random_tokens(ours, 40, 3)
    cache = ours.make_cache(sequences=1, context=64, types=FLOATS)
    batch = Batch.of(tokens, list(range(40)), [0] * 40, list(range(40)))
    with torch.inference_mode():
        cache.start_forward(batch)
        expected = theirs(torch.tensor([tokens])).last_hidden_state[0]
        check_close(ours, forward.states_of(ours.model, batch, cache), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_jina_embeddings_2_computes_the_states_of_its_reference(kind: str, tmp_path: Path) -> None:
    tiny = TinyJinaBertV2(kind=kind)
    architecture, prefix = KINDS[kind]
    folder = save_jina2(tmp_path / "checkpoint", original(tiny), architecture, prefix)
    convert(folder, tmp_path / "m.gguf", FileType.F32)
    check_states(load_model(tmp_path / "m.gguf"), original(tiny))
    with open_gguf(tmp_path / "m.gguf") as file:
        assert file.metadata["tokenizer.ggml.token_type_count"] == 2
        assert ("blk.0.ffn_gate.weight" in file.tensors) is (kind == "code")  # the order llama.cpp requires


@pytest.mark.parametrize("changes", [{"feed_forward_type": "reglu"}, {"position_embedding_type": "absolute"}])
def test_jina_variants_without_a_layout_are_refused(changes: dict[str, str], tmp_path: Path) -> None:
    tiny = TinyJinaBertV2()
    path = save_jina2(tmp_path / "checkpoint", original(tiny)) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ConversionError, match="no supported variant has these settings"):
        convert(path.parent, tmp_path / "m.gguf")


def converted(folder: Path) -> LoadedModel:
    """Return Jina Embeddings 3 loaded with its published adapters, their scales 0 by default."""
    checkpoint = save_jina3(folder / "checkpoint", original(TinyJinaBertV3()))
    save_words(checkpoint)
    convert(checkpoint, folder / "m.gguf", FileType.F32)
    made = convert_adapters(checkpoint, lambda name: folder / f"{name}.gguf", folder / "m.gguf")
    files = [AdapterFile(str(path), name, 0.0) for name, path in made.items()]
    return load_model(folder / "m.gguf", adapters=files)


def test_jina_embeddings_3_and_its_adapters_compute_the_vectors_of_the_reference(tmp_path: Path) -> None:
    """All requests share one batch."""
    ours, theirs = converted(tmp_path), original(TinyJinaBertV3())
    references = {None: theirs} | {task: merged_jina3(tmp_path / task, theirs, task) for task in TASKS}
    run = Run(ours, batch_size=512, context=64)
    texts = [random_tokens(ours, count, count) for count in (30, 7)]
    for number, task in enumerate(references):
        lora = None if task is None else [AdapterScale(name=task)]
        run.embed(number, *texts, normalize=False, lora=lora)
    run.finish()
    for number, reference in enumerate(references.values()):
        for vector, text in zip(run.vectors(number), texts, strict=True):
            with torch.inference_mode():
                expected = reference(torch.tensor([text])).last_hidden_state[0].mean(0)
            check_close(ours, torch.from_numpy(vector), expected)


def test_adapter_names_its_task_and_prompt_prefix(tmp_path: Path) -> None:
    converted(tmp_path)
    for task, prefix in TASKS.items():
        with open_gguf(tmp_path / f"{task}.gguf") as file:
            assert file.architecture == "jina-bert-v3"
            assert file.metadata["general.type"] == "adapter"
            assert file.metadata["adapter.lora.task_name"] == task
            assert file.metadata.get("adapter.lora.prompt_prefix", "") == prefix
            assert file.metadata["adapter.lora.alpha"] == ALPHA


@pytest.mark.parametrize("names", ["query", ["../query"], ["a", "a"], [1], [".hidden"], ["x" * 65], ["ä"]])
def test_unusable_task_names_are_refused(names: Any, tmp_path: Path) -> None:
    checkpoint = save_jina3(tmp_path / "checkpoint", original(TinyJinaBertV3()))
    path = checkpoint / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"lora_adaptations": names}))
    with pytest.raises(ConversionError, match=r"'lora_adaptations' is .*, not a list of task names"):
        convert_adapters(checkpoint, lambda name: tmp_path / name, tmp_path / "m.gguf")


@pytest.mark.parametrize("alpha", ["x", True, [1], float("nan"), float("inf")])
def test_alpha_must_be_a_finite_number(alpha: Any, tmp_path: Path) -> None:
    checkpoint = save_jina3(tmp_path / "checkpoint", original(TinyJinaBertV3()))
    path = checkpoint / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"lora_alpha": alpha}))
    with pytest.raises(ConversionError, match=r"'lora_alpha' is .*, not a number"):
        convert_adapters(checkpoint, lambda name: tmp_path / name, tmp_path / "m.gguf")


def test_model_without_adapters_converts_to_none(tmp_path: Path) -> None:
    tiny = TinyJinaBertV2()
    folder = save_jina2(tmp_path / "checkpoint", original(tiny))
    assert convert_adapters(folder, lambda name: tmp_path / name, tmp_path / "m.gguf") == {}


@pytest.mark.parametrize(
    ("tensor", "a", "b"),
    [
        ("token_embd", (90, 4), (64, 4)), ("token_embd", (96, 4), (60, 4)), ("token_types", (4, 60), (1, 4)),
        ("token_types", (4, 64), (2, 4)),
    ],
)  # fmt: skip
def test_adapter_for_tables_of_other_sizes_is_refused(
    tensor: str, a: tuple[int, ...], b: tuple[int, ...], tmp_path: Path
) -> None:
    converted(tmp_path)
    shapes = {"token_embd": ((96, 4), (64, 4)), "token_types": ((4, 64), (1, 4))} | {tensor: (a, b)}
    writer = adapter_writer(tmp_path / "a.gguf", "jina-bert-v3")
    for name, pair in shapes.items():
        for half, shape in zip("ab", pair, strict=True):
            writer.add_tensor(f"{name}.weight.lora_{half}", np.ones(shape, np.float32), GGMLType.F32)
    writer.write()
    with pytest.raises(ModelError, match=rf"'{tensor}\.weight\.lora_a' is .*beside a weight of"):
        load_model(tmp_path / "m.gguf", adapters=[AdapterFile(str(tmp_path / "a.gguf"), "a", 1.0)])
