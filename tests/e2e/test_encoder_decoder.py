"""An encoder-decoder model over HTTP and in the library, compared with transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import puna
from puna.gguf import open_gguf
from puna.tokenizer import tokenizer_from_gguf
from tests.e2e.servers import Server, add_model
from tests.model.models.parity import original
from tests.tiny.t5 import TinyT5, tiny_t5_gguf

pytestmark = pytest.mark.e2e

PROMPTS = ["once upon a time", "why is the sky blue?"]
GREEDY = {"temperature": 0, "num_predict": 10}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = TinyT5(seed=9)
    return tiny_t5_gguf(tmp_path_factory.mktemp("t5") / "t5.gguf", config, model=original(config))


@pytest.fixture(scope="module")
def server(server: Server, file: Path) -> Iterator[Server]:
    add_model(server, "t5", file)
    yield server
    server.unload()
    server.client.delete("t5")


@pytest.fixture(scope="module")
def expected(file: Path) -> list[str]:
    """Return the answers of transformers, up to an end token."""
    with open_gguf(file) as opened:
        tokenizer = tokenizer_from_gguf(opened)
    reference, answers = original(TinyT5(seed=9)), []
    for prompt in PROMPTS:
        answer, ids = [0], torch.tensor([tokenizer.encode(prompt)])
        while len(answer) < 11 and answer[-1] not in tokenizer.eos_ids:
            with torch.inference_mode():
                answer.append(
                    int(reference(ids, decoder_input_ids=torch.tensor([answer])).logits[0, -1].argmax())
                )
        answers.append(tokenizer.decode([id for id in answer[1:] if id not in tokenizer.eos_ids]))
    return answers


def test_answers_match_the_reference(server: Server, expected: list[str]) -> None:
    replies = [server.client.generate("t5", prompt, raw=True, options=GREEDY) for prompt in PROMPTS]
    assert [reply.response for reply in replies] == expected
    assert (replies[1].prompt_eval_count or 0) > 1
    assert server.client.show("t5").capabilities == ["completion"]


def test_library_answers_as_the_server_does(file: Path, expected: list[str]) -> None:
    with puna.load(file, num_ctx=64) as model:
        assert [str(model.generate(prompt, temperature=0, num_predict=10)) for prompt in PROMPTS] == expected
