"""Features of Gemma 3n and Gemma 4 alone; `test_decoders` compares them with transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from puna.batch import Batch
from puna.errors import ModelError, UnsupportedModelError
from puna.model.layer_cache import Everything, KeysOf, Window
from puna.model.load import LoadedModel, load_model
from puna.nn.attention import BorrowingAttention
from tests.model.models.parity import (
    FLOATS,
    check_close,
    original,
    random_tokens,
    read,
    reference_log_probabilities,
)
from tests.tiny.converted import Contents, converted
from tests.tiny.decoders import tiny_decoder_gguf
from tests.tiny.forward import logits_of
from tests.tiny.gemmas import TinyGemma3n, TinyGemma4

EXPERTS = {
    "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16,
}  # fmt: skip
SHARING = TinyGemma4(settings={"num_kv_shared_layers": 2}, layer_inputs=16, seed=70)


def load(directory: Path, config: TinyGemma4) -> tuple[LoadedModel, Any]:
    """Return our model and transformers'."""
    theirs = original(config)
    return load_model(tiny_decoder_gguf(directory / "model.gguf", config, model=theirs)), theirs


@pytest.mark.parametrize("config", [SHARING, TinyGemma3n(seed=71)], ids=["gemma4", "gemma3n"])
def test_the_last_layers_use_the_keys_of_layers_with_the_same_window(
    tmp_path: Path, config: TinyGemma4
) -> None:
    ours, _ = load(tmp_path, config)
    # Gemma 4 with per-layer inputs reads pictures like text.
    spans = config is not SHARING
    window, everything = Window(8, spans=spans), Everything(spans=spans)
    assert [layer.remembers for layer in ours.model.options.layers] == [
        window, window, everything, KeysOf(1), KeysOf(2),
    ]  # fmt: skip
    cache = ours.make_cache(sequences=1, context=64, types=FLOATS)
    assert sorted(cache.layers) == [0, 1, 2]


@pytest.mark.parametrize("config", [SHARING, TinyGemma3n(seed=71)], ids=["gemma4", "gemma3n"])
def test_only_rows_with_logits_pass_through_layers_without_keys(
    tmp_path: Path, config: TinyGemma4, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = load(tmp_path, config)
    tokens, rows = random_tokens(ours, 30, 1), []
    forward = BorrowingAttention.forward
    monkeypatch.setattr(
        BorrowingAttention, "forward", lambda self, x, *rest: rows.append(len(x)) or forward(self, x, *rest)
    )
    cache = ours.make_cache(sequences=1, context=64, types=FLOATS)
    expected = reference_log_probabilities(theirs, tokens)
    for begin, wanted in ((0, []), (10, [3, 9]), (20, [9])):
        positions = list(range(begin, begin + 10))
        batch = Batch.of(tokens[begin : begin + 10], positions, [0] * 10, wanted)
        cache.start_forward(batch)
        found = logits_of(ours.model, batch, cache).log_softmax(-1)
        assert found.shape[0] == len(wanted)
        assert not wanted or (found - expected[[begin + row for row in wanted]]).abs().max() < 1e-3
    assert rows == [0, 0, 2, 2, 1, 1]


@pytest.mark.parametrize("windowed", [True, False], ids=["window", "everything"])
def test_shifted_keys_and_values_equal_those_computed_anew(tmp_path: Path, windowed: bool) -> None:
    """One layer attends, so the remaining keys do not depend on what was removed."""
    config = TinyGemma4(windowed=(windowed, False), seed=72)
    theirs = config.build()
    theirs.model.layers[1].self_attn.o_proj.weight.data.zero_()
    ours = load_model(tiny_decoder_gguf(tmp_path / "model.gguf", config, model=theirs))
    tokens = random_tokens(ours, 41, 15)
    cache = ours.make_cache(sequences=1, context=64, types=FLOATS)
    for begin in range(0, 40, 10):
        read(ours, cache, 0, tokens[begin : begin + 10])
    cache.remove(0, 5, 25)
    found = read(ours, cache, 0, tokens[40:])
    expected = reference_log_probabilities(theirs, [*tokens[:5], *tokens[25:]])
    assert (found[0] - expected[-1]).abs().max() < 1e-3


def test_a_file_may_omit_scales(tmp_path: Path) -> None:
    """Scales of layers and of experts are optional."""
    config = TinyGemma4(settings=EXPERTS, seed=73)
    theirs = config.build()
    for layer in theirs.model.layers:
        layer.layer_scalar.fill_(1)
        layer.router.per_expert_scale.data.fill_(1)

    class Unscaled(TinyGemma4):
        def change(self, found: Contents, model: Any) -> None:
            for name in list(found.tensors):
                if name.endswith(("layer_output_scale.weight", "ffn_down_exps.scale")):
                    del found.tensors[name]

    unscaled = Unscaled(settings=config.settings)
    ours = load_model(tiny_decoder_gguf(tmp_path / "model.gguf", unscaled, model=theirs))
    tokens = random_tokens(ours, 20, 2)
    found = read(ours, ours.make_cache(sequences=1, context=64, types=FLOATS), 0, tokens)
    check_close(ours, found, reference_log_probabilities(theirs, tokens))


@pytest.mark.parametrize(
    ("config", "metadata", "words"),
    [
        (SHARING, {"attention.shared_kv_layers": 5}, "gemma4.attention.shared_kv_layers' is 5, of 5 layers"),
        (SHARING, {"attention.shared_kv_layers": -1}, "gemma4.attention.shared_kv_layers"),
        (SHARING, {"attention.shared_kv_layers": 3}, "no earlier layer has the window of layer 2"),
        (SHARING, {"attention.key_length_swa": 8}, "gemma4.attention.key_length_swa"),
        (SHARING, {"attention.key_length": 32}, "gemma4.attention.key_length' is 2 x 32"),
        (SHARING, {"attention.value_length_swa": 8}, "gemma4.attention.value_length_swa"),
        (
            SHARING,
            {"rope.dimension_count_swa": 7},
            "gemma4.rope.dimension_count_swa.*even and at most the 16",
        ),
        (SHARING, {"rope.dimension_count_swa": 24}, "gemma4.rope.dimension_count_swa"),
        (SHARING, {"rope.freq_base_swa": 0.0}, "gemma4.rope.freq_base_swa"),
        (SHARING, {"embedding_length_per_layer_input": -1}, "gemma4.embedding_length_per_layer_input"),
        (SHARING, {"embedding_length_per_layer_input": 8}, "inp_gate.weight' has 16x64 values"),
        (TinyGemma3n(), {"altup.active_idx": 4}, "gemma3n.altup.active_idx' is 4, of 4 streams"),
        (TinyGemma3n(), {"altup.num_inputs": 0}, "gemma3n.altup.num_inputs"),
        (TinyGemma3n(), {"altup.num_inputs": 3}, "altup_router.weight' has 4x64 values"),
        (TinyGemma3n(), {"activation_sparsity_scale": [1.0]}, "activation_sparsity_scale.*each of the 5"),
        (TinyGemma3n(), {"activation_sparsity_scale": [float("nan")] * 5}, "activation_sparsity_scale"),
        (TinyGemma3n(), {"activation_sparsity_scale": "most"}, "activation_sparsity_scale"),
        (TinyGemma3n(), {"activation_sparsity_scale": ["a"] * 5}, "activation_sparsity_scale"),
    ],
    ids=lambda value: f"{value}" if isinstance(value, dict) else "",
)
def test_invalid_metadata_is_named(
    tmp_path: Path, config: TinyGemma4, metadata: dict[str, Any], words: str
) -> None:
    bad = replace(config, metadata=metadata)
    path = tiny_decoder_gguf(tmp_path / "bad.gguf", bad, model=original(config))
    with pytest.raises(ModelError, match=rf"bad\.gguf: .*{words}"):
        load_model(path)


def test_layer_inputs_beside_experts_are_refused(tmp_path: Path) -> None:
    """No model has both, and the layers' inputs must not be ignored."""
    found = converted(original(TinyGemma4(settings=EXPERTS)))
    inputs = converted(original(TinyGemma4(layer_inputs=16)))
    found.set({"embedding_length_per_layer_input": 16})
    found.tensors = inputs.tensors | found.tensors
    with pytest.raises(UnsupportedModelError, match="inp_gate"):
        load_model(found.write(tmp_path / "model.gguf"))
