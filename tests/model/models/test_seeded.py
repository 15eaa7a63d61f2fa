"""Decoders that transformers lacks against llama.cpp's results, on tiny random checkpoints in float32."""

from __future__ import annotations

import json

import pytest
import torch

from puna.model.load import load_model
from tests.model.models.parity import (
    check_close,
    check_restored,
    log_probabilities_after_reuse,
    our_log_probabilities,
)
from tests.tiny.seeded import EXPECTED, SEEDED

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=SEEDED)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Return our model, tokens, and log-probabilities of chosen tokens after each."""
    path = tmp_path_factory.mktemp("seeded") / "model.gguf"
    SEEDED[request.param].contents().write(path)
    expected = json.loads((EXPECTED / f"{request.param}.json").read_text())
    return (
        load_model(path),
        expected["tokens"],
        expected["chosen"],
        torch.tensor(expected["log_probabilities"]),
    )


@pytest.mark.parametrize("parts", [[40], [16, 19, 5], [1] * 40], ids=["whole", "chunks", "tokens"])
def test_log_probabilities_are_those_of_llama_cpp_beside_another_sequence(case, parts: list[int]) -> None:
    ours, tokens, chosen, expected = case
    check_close(ours, our_log_probabilities(ours, tokens, parts)[:, chosen], expected)


def test_log_probabilities_are_those_of_llama_cpp_after_prefix_reuse(case) -> None:
    ours, tokens, chosen, expected = case
    found = log_probabilities_after_reuse(ours, tokens, 30)[:, chosen]
    check_close(ours, found, expected[-len(found) :])


def test_results_do_not_depend_on_how_a_text_is_divided(case) -> None:
    ours, tokens, *_ = case
    whole, single = (our_log_probabilities(ours, tokens, parts) for parts in ([40], [1] * 40))
    assert torch.equal(whole, single)


def test_a_text_goes_on_from_saved_states(case) -> None:
    ours, tokens, *_ = case
    check_restored(ours, tokens, 25)
