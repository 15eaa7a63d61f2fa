"""Decoders that transformers lacks against llama.cpp's log-probabilities (tests/parity/write_expected.py)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from puna.errors import ModelError, UnsupportedModelError
from puna.model.load import LoadedModel, load_model
from puna.ops import Backend
from tests.model.models.expected import Expected, expected
from tests.model.models.parity import (
    check_close,
    check_restored,
    log_probabilities_after_reuse,
    original,
    our_log_probabilities,
)
from tests.tiny.decoders import tiny_decoder_gguf
from tests.tiny.remote_code import CHECKPOINTS, centred
from tests.tiny.seeded import SEEDED


@pytest.fixture(scope="module", params=[*CHECKPOINTS, *SEEDED], ids=lambda name: name.replace(" ", "-"))
def known(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, ops: Backend
) -> tuple[LoadedModel, Expected]:
    """Return our model, and what llama.cpp computed."""
    name, path = request.param, tmp_path_factory.mktemp("decoder") / "model.gguf"
    if name in SEEDED:
        SEEDED[name].contents().write(path)
    else:
        tiny_decoder_gguf(path, CHECKPOINTS[name], model=original(CHECKPOINTS[name]))
    return load_model(path, ops=ops), expected(name)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [[48], [20, 20, 8], [1] * 48], ids=["whole", "chunks", "tokens"])
def test_log_probabilities_are_those_of_llama_cpp_beside_another_sequence(
    known: tuple[LoadedModel, Expected], parts: list[int]
) -> None:
    ours, theirs = known
    check_close(
        ours, our_log_probabilities(ours, theirs.text, parts)[:, theirs.tokens], theirs.log_probabilities
    )


@pytest.mark.slow
def test_log_probabilities_after_prefix_reuse_are_those_of_llama_cpp(
    known: tuple[LoadedModel, Expected],
) -> None:
    ours, theirs = known
    found = log_probabilities_after_reuse(ours, theirs.text, 30)
    check_close(ours, found[:, theirs.tokens], theirs.log_probabilities[-len(found) :])


@pytest.mark.slow
def test_results_do_not_depend_on_how_a_text_is_divided(known: tuple[LoadedModel, Expected]) -> None:
    ours, theirs = known
    if ours.ops.name == "reference":
        pytest.skip("numpy rounds sums by their shapes")
    whole, single = (our_log_probabilities(ours, theirs.text, parts) for parts in ([48], [1] * 48))
    assert torch.equal(whole, single)


@pytest.mark.slow
def test_a_text_goes_on_from_saved_states(known: tuple[LoadedModel, Expected]) -> None:
    ours, theirs = known
    check_restored(ours, theirs.text, 25)


@pytest.mark.slow
def test_layer_norms_of_refact_ignore_the_mean_of_the_residual_stream(tmp_path: Path, ops: Backend) -> None:
    tiny = CHECKPOINTS["refact"]
    found = []
    for name, finish in (("centred", centred), ("not centred", lambda state, config: state)):
        path = tiny_decoder_gguf(tmp_path / f"{name}.gguf", replace(tiny, finish=finish))
        found.append(our_log_probabilities(load_model(path, ops=ops), list(range(30)), [30]))
    assert (found[0] - found[1]).abs().max() < 1e-4


def test_first_files_of_grok_leave_out_its_factors(tmp_path: Path, ops: Backend) -> None:
    """They are those of llama.cpp's reader."""
    factors = {
        "embedding_scale": 78.38367176906169, "logit_scale": 0.5773502691896257,
        "attention.output_scale": 0.08838834764831845, "attn_logit_softcapping": 30.0,
        "router_logit_softcapping": 30.0,
    }  # fmt: skip
    tiny, found = CHECKPOINTS["grok"], []
    for number, keys in enumerate((factors, dict.fromkeys(factors))):
        contents = tiny.contents(original(tiny))
        contents.set(keys)
        ours = load_model(contents.write(tmp_path / f"{number}.gguf"), ops=ops)
        found.append(our_log_probabilities(ours, list(range(20)), [20]))
    assert torch.equal(*found)


def test_scores_of_grok_s_router_are_capped(tmp_path: Path, ops: Backend) -> None:
    cap, tiny = 0.5, CHECKPOINTS["grok"]
    contents = tiny.contents(original(tiny))
    contents.set({"router_logit_softcapping": cap})
    ours = load_model(contents.write(tmp_path / "model.gguf"), ops=ops)
    experts: Any = ours.model.layers[0].feed_forward  # type: ignore[attr-defined]
    given: list[Any] = []
    experts.through = lambda hidden, *routed: given.extend(routed)
    hidden = np.random.default_rng(4).standard_normal((7, 64)).astype(np.float32)
    experts.forward(ops.array(hidden))
    chosen, shares = (torch.from_numpy(ops.numpy(each).copy()) for each in given)
    scores = torch.from_numpy(ops.numpy(experts.router(ops.array(hidden))).copy())
    assert scores.abs().max() > 2 * cap
    best = torch.softmax(cap * torch.tanh(scores / cap), dim=-1).topk(2)
    assert torch.equal(chosen.long().sort().values, best.indices.sort().values)
    wanted = torch.zeros_like(scores).scatter_(
        1, best.indices, best.values / best.values.sum(1, keepdim=True)
    )
    assert torch.allclose(torch.zeros_like(scores).scatter_(1, chosen.long(), shares), wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("grok", {"attention.temperature_length": 128}),
        ("jais", {"context_length": 1 << 20}),
        ("baichuan alibi", {"context_length": 1 << 20}),
    ],
)
def test_files_of_models_that_are_not_supported_are_refused(
    name: str, keys: dict[str, Any], tmp_path: Path, ops: Backend
) -> None:
    tiny = CHECKPOINTS[name]
    contents = tiny.contents(original(tiny))
    contents.set(keys)
    with pytest.raises(ModelError, match=next(iter(keys))):
        load_model(contents.write(tmp_path / "model.gguf"), ops=ops)


def test_baichuan_of_another_size_is_refused(tmp_path: Path, ops: Backend) -> None:
    tiny = CHECKPOINTS["baichuan rotated"]
    contents = tiny.contents(original(tiny))
    contents.set({"block_count": 2})
    contents.tensors = {
        name: array
        for name, array in contents.tensors.items()
        if not name.startswith("blk.") or int(name.split(".")[1]) < 2
    }
    with pytest.raises(UnsupportedModelError, match="Baichuan with 2 layers"):
        load_model(contents.write(tmp_path / "model.gguf"), ops=ops)


def test_grok_that_is_sharpened_after_its_context_runs(tmp_path: Path, ops: Backend) -> None:
    tiny = CHECKPOINTS["grok"]
    contents = tiny.contents(original(tiny))
    contents.set({"attention.temperature_length": 256})
    load_model(contents.write(tmp_path / "model.gguf"), ops=ops)
