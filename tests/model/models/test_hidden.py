"""Hidden states, the basis of embeddings, against those of Hugging Face transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from puna.batch import Batch
from puna.model.load import LoadedModel, load_model
from puna.ops import Backend
from tests.model.models.parity import FLOATS, original
from tests.tiny.forward import states_of
from tests.tiny.models import ARCHITECTURES


@pytest.fixture(scope="module", params=ARCHITECTURES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, ops: Backend):
    """Return our model and transformers', of one architecture."""
    config, write = ARCHITECTURES[request.param]
    theirs = original(config)
    path = write(tmp_path_factory.mktemp("hidden") / "model.gguf", config, model=theirs)
    return load_model(path, ops=ops), theirs


@pytest.mark.parametrize("parts", [[60], [25, 1, 34]], ids=str)
def test_hidden_states_agree(pair: tuple[LoadedModel, Any], parts: list[int]) -> None:
    ours, theirs = pair
    torch.default_generator.manual_seed(21)
    tokens = torch.randint(0, ours.tokenizer.vocab_size - 4, (60,)).tolist()
    with torch.inference_mode():
        expected = theirs.model(torch.tensor([tokens])).last_hidden_state[0]
    found = hidden_states(ours, tokens, parts)
    # Every third row was requested; their values are of magnitude 1.
    assert (found - expected[::3]).abs().max() < 1e-3


def hidden_states(ours: LoadedModel, tokens: list[int], parts: list[int]) -> torch.Tensor:
    """Return the states of every third position, reading the tokens in `parts` beside another sequence."""
    cache = ours.make_cache(sequences=2, context=128, types=FLOATS)
    found, begin = [], 0
    for part in parts:
        end = begin + part
        batch = Batch.of(
            [7, *tokens[begin:end]],
            [len(found), *range(begin, end)],
            [0, *[1] * part],
            [1 + position - begin for position in range(begin, end) if position % 3 == 0],
        )
        with torch.inference_mode():
            cache.start_forward(batch)
            found.append(states_of(ours.model, batch, cache))
        begin = end
    return torch.cat(found)
