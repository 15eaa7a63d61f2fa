"""Gemma 4's assistants compute what transformers' do, and refuse targets that they were not made for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from puna.batch import Batch, KeptStates
from puna.errors import ModelError, RequestError, UnsupportedModelError
from puna.model.load import LoadedModel, LoadSettings, load_model
from puna.model.models.gemma4_assistant import Gemma4Assistant
from tests.model.models.parity import FLOATS, check_close, random_tokens
from tests.tiny.assistants import AssistantReference, TinyAssistant, TinyTarget
from tests.tiny.decoders import tiny_decoder_gguf
from tests.tiny.llama import TinyLlama, tiny_llama_gguf

TARGET = TinyTarget(seed=80)
TINY = {
    "windows": TinyAssistant(target=TARGET, seed=81),
    "shared keys, layer inputs, clusters": TinyAssistant(
        target=TinyTarget(settings={"num_kv_shared_layers": 2}, layer_inputs=16, seed=82),
        windowed=(True, False, True, False), clusters=7, seed=83,
    ),
    "keys are values, capped": TinyAssistant(
        target=TinyTarget(
            settings={
                "attention_k_eq_v": True, "num_global_key_value_heads": 1, "final_logit_softcapping": 3.0,
            },
            windowed=(True, False, True, True, False), seed=84,
        ),
        windowed=(True, False), settings={"final_logit_softcapping": 3.0}, seed=85,
    ),
}  # fmt: skip
DRAFTS = LoadSettings(drafts=True)


def load(folder: Path, tiny: TinyAssistant) -> tuple[LoadedModel, LoadedModel, Any, Any]:
    """Return target and assistant, ours and transformers'."""
    theirs, assistant = tiny.target.build(), tiny.build()
    target = load_model(tiny_decoder_gguf(folder / "target.gguf", tiny.target, model=theirs))
    ours = load_model(tiny_decoder_gguf(folder / "assistant.gguf", tiny, model=assistant), DRAFTS)
    return target, ours, theirs, assistant


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("length", [2, 7, 30])
def test_states_and_logits_match_transformers(tmp_path: Path, name: str, length: int) -> None:
    target, ours, theirs, assistant = load(tmp_path, TINY[name])
    model, ops = ours.model, target.ops
    assert isinstance(model, Gemma4Assistant)
    model.attach(target.model)
    tokens = random_tokens(target, length + 3, 1)
    inputs, drafts = tokens[: length + 1], tokens[length + 1 :]
    logits, states = AssistantReference(theirs, assistant).draft(inputs, drafts)

    cache = target.make_cache(sequences=2, context=64, types=FLOATS)
    kept = KeptStates(ops, 64, model.state_size, only_wanted=True)
    batch = Batch.of(inputs[:-1], list(range(length)), [1] * length, [length - 1])
    cache.start_forward(batch)
    target.model.forward(batch.on(ops, kept), cache)
    hidden = ops.array(kept.read(1))
    for number, token in enumerate((inputs[-1], *drafts)):
        batch = Batch.of([token], [length], [1], [0])
        cache.start_reading(model.lenders, batch)
        found, hidden = model.draft(hidden, batch.on(ops), cache)
        assert np.abs(ops.numpy(hidden)[0] - states[number].numpy()).max() < 1e-4
        computed, expected = torch.from_numpy(ops.numpy(found)[0].copy()), logits[number]
        if TINY[name].clusters:
            inside = expected > expected.min()
            assert inside.sum() > len(expected) / 2
            check_close(ours, computed[inside], expected[inside])
        else:
            check_close(ours, computed.log_softmax(-1), expected.log_softmax(-1))
    assert cache.length(1) == length


def test_several_sequences_draft_at_once(tmp_path: Path) -> None:
    target, ours, theirs, assistant = load(tmp_path, TINY["windows"])
    model, ops = ours.model, target.ops
    assert isinstance(model, Gemma4Assistant)
    model.attach(target.model)
    texts = [random_tokens(target, count, count) for count in (4, 21)]
    reference = AssistantReference(theirs, assistant)
    cache = target.make_cache(sequences=2, context=64, types=FLOATS)
    kept, states = KeptStates(ops, 64, model.state_size, only_wanted=True), []
    for row, text in enumerate(texts):
        count = len(text) - 1
        batch = Batch.of(text[:-1], list(range(count)), [row] * count, [count - 1])
        cache.start_forward(batch)
        target.model.forward(batch.on(ops, kept), cache)
        states.append(kept.read(1)[0])
    batch = Batch.of([text[-1] for text in texts], [len(text) - 1 for text in texts], [0, 1], [])
    batch.outputs = None
    cache.start_reading(model.lenders, batch)
    found, _ = model.draft(ops.array(np.stack(states)), batch.on(ops), cache)
    for row, text in enumerate(texts):
        [expected], _ = reference.draft(text, [])
        assert (torch.from_numpy(ops.numpy(found)[row].copy()) - expected).abs().max() < 1e-4


def test_keys_are_those_of_llamacpp(tmp_path: Path) -> None:
    found = TINY["windows"].contents(TINY["windows"].build())
    assert found.architecture == "gemma4-assistant"
    assert found.keys["block_count"] == found.keys["nextn_predict_layers"] == 3
    assert found.keys["embedding_length_out"] == 64
    assert found.keys["attention.sliding_window_pattern"] == [True, True, False]
    assert {"nextn.pre_projection.weight", "nextn.post_projection.weight", "rope_freqs.weight"} <= {
        *found.tensors
    }


def test_an_assistant_alone_is_refused(tmp_path: Path) -> None:
    path = tiny_decoder_gguf(tmp_path / "assistant.gguf", TINY["windows"])
    with pytest.raises(UnsupportedModelError, match="only drafts for another model"):
        load_model(path)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (TinyTarget(settings={"hidden_size": 48}), "hidden size is 48, and the assistant reads 64 values"),
        (TinyTarget(settings={"sliding_window": 9}), "no layer with a window of 8"),
        (TinyTarget(settings={"num_key_value_heads": 1}), "a window of 8 have 1 heads of 16 values"),
        (TinyTarget(settings={"global_head_dim": 32}), "full attention have 2 heads of 32 values"),
    ],
)
def test_other_targets_are_refused(tmp_path: Path, target: TinyTarget, message: str) -> None:
    ours = load_model(tiny_decoder_gguf(tmp_path / "assistant.gguf", TINY["windows"]), DRAFTS)
    other = load_model(tiny_decoder_gguf(tmp_path / "target.gguf", target))
    assert isinstance(ours.model, Gemma4Assistant)
    with pytest.raises(RequestError, match=message):
        ours.model.attach(other.model)


def test_models_of_other_families_are_refused(tmp_path: Path) -> None:
    ours = load_model(tiny_decoder_gguf(tmp_path / "assistant.gguf", TINY["windows"]), DRAFTS)
    assert isinstance(ours.model, Gemma4Assistant)
    with pytest.raises(RequestError, match="no Gemma 4"):
        ours.model.attach(load_model(tiny_llama_gguf(tmp_path / "llama.gguf", TinyLlama())).model)


def test_a_file_without_the_size_of_its_target_is_refused(tmp_path: Path) -> None:
    tiny = replace(TINY["windows"], metadata={"embedding_length_out": None})
    with pytest.raises(ModelError, match="embedding_length_out"):
        load_model(tiny_decoder_gguf(tmp_path / "assistant.gguf", tiny), DRAFTS)
