"""Popular clients work unchanged with a real server: `make test-clients`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.clients import outcomes
from tests.clients.clients import CLIENTS, COLUMNS, LM_EVAL, Client
from tests.clients.expected import ASKED, CALLS, CHAT, TRIP, WEATHER, write_model
from tests.convert.checkpoints import save_tokenizer
from tests.e2e.servers import Server, add_model, running
from tests.tiny.bert import TinyBert, tiny_bert_gguf
from tests.tiny.llama import TinyLlama, tiny_llama_gguf
from tests.tiny.words import VOCABULARY

pytestmark = [pytest.mark.clients, pytest.mark.e2e, pytest.mark.slow, pytest.mark.samples]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("clients")
    # In full precision, because likelihoods are compared.
    with running(folder / "models", PUNA_KV_CACHE_TYPE="f32") as started:
        add_model(started, ASKED["model"], write_model(folder / "scripted.gguf"))
        add_model(started, ASKED["embedder"], tiny_bert_gguf(folder / "bert.gguf"))
        add_model(started, "tiny", tiny_llama_gguf(folder / "tiny.gguf"))
        yield started


@pytest.mark.parametrize(
    ("client", "column"),
    [
        pytest.param(client, column, id=f"{client.id} {column}")
        for client in CLIENTS
        for column in COLUMNS
        if column not in client.without
    ],
)
def test_client_receives_what_the_model_says(server: Server, client: Client, column: str) -> None:
    if reason := outcomes.missing(client):
        pytest.skip(reason)
    answer = outcomes.outcome(client, server.url)[column]
    assert "failed" not in answer, answer["failed"]
    CHECKS[column](client, answer["got"])
    outcomes.works.setdefault(client.id, []).append(column)


def check_chat(client: Client, got: str) -> None:
    assert got == CHAT


def check_stream(client: Client, got: list[Any]) -> None:
    pieces = [piece for piece in got if piece]  # some clients end with a piece that has only the reason
    assert len(pieces) > 3
    if isinstance(pieces[0], dict):
        assert pieces[0] != pieces[-1] == TRIP
    else:
        assert "".join(pieces) == CHAT


def check_schema(client: Client, got: dict[str, Any]) -> None:
    assert got == TRIP


def check_tools(client: Client, got: dict[str, Any]) -> None:
    calls = [["get_weather", TRIP]] if client.strict else CALLS
    assert got == {"calls": calls, "answer": WEATHER}


def check_embeddings(client: Client, got: list[list[float]]) -> None:
    model = TinyBert().build()
    for text, vector in zip(ASKED["texts"], got, strict=True):
        words = ["▁" + word for word in text.split()]
        ids = [VOCABULARY.index(token) for token in ("[CLS]", *words, "[SEP]")]
        with torch.no_grad():
            mean = model(torch.tensor([ids])).last_hidden_state[0].mean(0).numpy()
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-5)


def check_errors(client: Client, got: dict[str, list[str]]) -> None:
    assert client.errors is not None
    words = ("model 'nosuch(:latest)?' not found", '"minilm(:latest)?" does not support chat')
    for case, pattern, kind in zip(("unknown", "refused"), words, client.errors, strict=True):
        raised, text = got[case]
        assert raised == kind
        # Some show the reply's JSON, possibly as a Python string.
        assert re.search(pattern, text.replace("\\", "")), text


CHECKS = {
    "chat": check_chat,
    "stream": check_stream,
    "schema": check_schema,
    "tools": check_tools,
    "embeddings": check_embeddings,
    "errors": check_errors,
}


# --- lm-eval ---


@pytest.fixture(scope="module")
def evaluated(server: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """Return lm-eval's results and the folder of the tokenizer."""
    if reason := outcomes.missing(LM_EVAL):
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return outcomes.outcome(LM_EVAL, server.url, str(folder)), folder


def test_lm_eval_gets_the_likelihoods_of_the_reference(evaluated: tuple[dict[str, Any], Path]) -> None:
    """For choices after a question and for whole texts, compared with transformers."""
    from transformers import PreTrainedTokenizerFast

    answers, folder = evaluated
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    model = TinyLlama().build()
    compared = []
    for task in ("choices", "texts"):
        assert "failed" not in answers[task], answers[task]["failed"]
        for (context, *continuation), answer in answers[task]["got"]:
            before = tokenizer.encode(context if continuation else "", add_special_tokens=False)
            whole = tokenizer.encode("".join([context, *continuation]), add_special_tokens=False)
            said = whole[len(before) :]
            before = before or [tokenizer.bos_token_id]  # lm-eval puts it before whole texts
            with torch.no_grad():
                logits = model(torch.tensor([before + said])).logits[0].double()
            rows = logits.log_softmax(-1)[len(before) - 1 : -1]
            likelihood = rows[torch.arange(len(said)), said].sum().item()
            greedy = rows.argmax(-1).tolist() == said
            got = answer if continuation else [answer, greedy]
            assert got == [pytest.approx(likelihood, abs=1e-4 * len(said)), greedy]
            compared.append(abs(got[0] - likelihood) / len(said))
    assert len(compared) == 13
    outcomes.likelihoods.update(texts=len(compared), difference=max(compared))


def test_lm_eval_gets_answers_up_to_its_stop_sequence(evaluated: tuple[dict[str, Any], Path]) -> None:
    answer = evaluated[0]["chat"]
    assert "failed" not in answer, answer["failed"]
    assert answer["got"] == [CHAT.partition(".")[0]] * 2
    outcomes.works[LM_EVAL.id] = ["chat"]
