"""Rerankers against Hugging Face transformers, on tiny random models in float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertForSequenceClassification

from puna.errors import ContextLengthError, ModelError, RequestError, UnavailableError, UnsupportedModelError
from puna.model.load import LoadedModel, load_model
from puna.ops import Backend
from puna.options import AdapterFile
from tests.convert.checkpoints import saved_with_words
from tests.engine.runs import Run
from tests.model.models.parity import original
from tests.tiny.adapters import adapter_writer
from tests.tiny.bert import tiny_bert_gguf
from tests.tiny.converted import converted
from tests.tiny.rerankers import (
    NO,
    QWEN3,
    QWEN3_TIED,
    QWEN3_VL,
    QWEN3_VL_TIED,
    TEMPLATE,
    YES,
    framed,
    save_jina_reranker,
    save_jina_reranker2,
    tiny_bert_reranker,
    tiny_bge,
    tiny_gte,
    tiny_jina,
    tiny_jina_without_pooler_gguf,
    tiny_qwen3_reranker_gguf,
    tiny_reranker_gguf,
)

QUERY = "once upon a time"
DOCUMENTS = ["there was a cat", "upon", "a time there was, once", "cat " * 20]

Expected = Callable[[LoadedModel, str], float]


def score(loaded: LoadedModel, *documents: str, query: str = QUERY, **settings: Any) -> list[float]:
    run = Run(loaded, batch_size=32, context=settings.pop("context", 128))
    run.embed(0, *documents, query=query, **settings)
    run.finish()
    return [float(vector[0]) for vector in run.vectors(0)]


def of_a_classifier(theirs: Any) -> Expected:
    """Compute the probability from the logits; BERT is told which text a token belongs to."""
    tells = isinstance(theirs, BertForSequenceClassification)

    def expected(ours: LoadedModel, document: str) -> float:
        query, text = (ours.tokenizer.encode(text, add_special=False) for text in (QUERY, document))
        ids = torch.tensor([framed(query, text)])
        of_document = torch.arange(ids.shape[1]) >= len(query) + 2
        kinds = {"token_type_ids": of_document.long()[None]} if tells else {}
        with torch.inference_mode():
            return float(theirs(ids, attention_mask=torch.ones_like(ids), **kinds).logits[0].sigmoid())

    return expected


def of_a_direct_classifier(theirs: Any) -> Expected:
    def expected(ours: LoadedModel, document: str) -> float:
        texts = [ours.tokenizer.encode(text, add_special=False) for text in (QUERY, document)]
        with torch.inference_mode():
            hidden = theirs.bert(torch.tensor([framed(*texts)])).last_hidden_state[0, 0]
            return float(theirs.classifier(hidden).tanh().sigmoid())

    return expected


def of_yes_and_no(theirs: Any) -> Expected:
    def expected(ours: LoadedModel, document: str) -> float:
        text = TEMPLATE.replace("{query}", QUERY).replace("{document}", document)
        with torch.inference_mode():
            logits = theirs(torch.tensor([ours.tokenizer.encode(text, add_special=False)])).logits[0, -1]
        return float(logits[[YES, NO]].softmax(0)[0])

    return expected


MODELS: dict[str, Callable[[], Any]] = {
    "bge": tiny_bge, "bert": tiny_bert_reranker, "gte-mean": lambda: tiny_gte("mean"),
    "gte-cls": lambda: tiny_gte("cls"), "jina": tiny_jina, "jina 2": tiny_bge,
}  # fmt: skip
QWEN3S = {
    "qwen3": QWEN3, "qwen3 tied": QWEN3_TIED, "qwen3vl": QWEN3_VL, "qwen3vl tied": QWEN3_VL_TIED,
}  # fmt: skip
SAVED = {"jina": save_jina_reranker, "jina 2": save_jina_reranker2}


@pytest.fixture(scope="module", params=[*MODELS, *QWEN3S, "jina without pooler"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, ops: Backend):
    """Return our model and transformers' score of a document."""
    path = tmp_path_factory.mktemp("reranker") / "model.gguf"
    if request.param in QWEN3S:
        model = original(QWEN3S[request.param])
        return load_model(tiny_qwen3_reranker_gguf(path, model), ops=ops), of_yes_and_no(model)
    if request.param == "jina without pooler":
        model = tiny_jina()
        path = tiny_jina_without_pooler_gguf(path, model)
        return load_model(path, ops=ops), of_a_direct_classifier(model)
    model = MODELS[request.param]()
    path = tiny_reranker_gguf(path, model, SAVED.get(request.param, saved_with_words))
    return load_model(path, ops=ops), of_a_classifier(model)


def test_scores_match_the_reference(pair: tuple[LoadedModel, Expected]) -> None:
    ours, expected = pair
    found = score(ours, *DOCUMENTS)
    assert found == pytest.approx([expected(ours, document) for document in DOCUMENTS], abs=1e-3)
    assert len({round(each, 3) for each in found}) > 1
    assert score(ours, DOCUMENTS[2])[0] == pytest.approx(found[2], abs=1e-6)


def test_a_document_that_is_too_long_is_cut_at_its_end(pair: tuple[LoadedModel, Expected]) -> None:
    ours, _ = pair
    run = Run(ours, context=48)
    run.embed(0, "cat " * 100, query="a")
    run.finish()
    (event,) = run.events[0]
    assert event.prompt_eval_count <= 48  # type: ignore[union-attr]
    assert event.truncated > 0  # type: ignore[union-attr]
    assert 0 <= run.vectors(0)[0][0] <= 1
    with pytest.raises(ContextLengthError, match="the input length exceeds the context length"):
        score(ours, "cat " * 100, context=48, truncate=False)
    with pytest.raises(ContextLengthError, match="the query leaves no room for documents"):
        score(ours, "cat", query="cat " * 100, context=48)


def test_a_reranker_does_not_embed(pair: tuple[LoadedModel, Expected]) -> None:
    ours, _ = pair
    with pytest.raises(UnavailableError, match="does not support embeddings"):
        Run(ours).embed(0, "once")
    with pytest.raises(RequestError, match="must be texts, not tokens"):
        Run(ours).embed(0, [1, 2], query="once")


def test_another_model_does_not_rank(tmp_path: Path) -> None:
    run = Run(load_model(tiny_bert_gguf(tmp_path / "bert.gguf")))
    with pytest.raises(UnavailableError, match="does not support reranking"):
        run.embed(0, "once", query="once")


def test_robertas_tokenizer_puts_two_separators_between_the_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from puna.engine.requests import _pair

    ours = load_model(tiny_reranker_gguf(tmp_path / "bge.gguf", tiny_bge()))
    tokenizer = ours.tokenizer
    first, second = (tokenizer.encode(text, add_special=False) for text in ("once", "a cat"))
    end = framed(first)[-1]
    assert _pair("once", "a cat", tokenizer, None) == (framed(first), [*second, end])
    monkeypatch.setattr(type(tokenizer), "token", lambda self, id: "<s>")
    assert _pair("once", "a cat", tokenizer, None) == (framed(first, []), [*second, end])


@pytest.mark.parametrize("labels", [None, ["no", "yes"], ["yes"]])
def test_classes_that_are_not_yes_and_no_are_refused(tmp_path: Path, labels: Any) -> None:
    stated = {"classifier.output_labels": labels}
    path = tiny_qwen3_reranker_gguf(tmp_path / "bad.gguf", original(QWEN3), **stated)
    with pytest.raises(UnsupportedModelError, match=r"bad\.gguf: the classifier has 2 classes"):
        load_model(path)


def test_two_token_types_without_a_pooler_are_refused(tmp_path: Path) -> None:
    """llama.cpp's converter writes such files."""
    found = converted(tiny_bert_reranker(), saved_with_words)
    for kind in ("weight", "bias"):
        del found.tensors[f"cls.{kind}"]
    with pytest.raises(
        UnsupportedModelError, match=r"bad\.gguf: the pooler before the classifier is missing"
    ):
        load_model(found.write(tmp_path / "bad.gguf"))


def test_an_adapter_of_distinguished_token_types_is_refused(tmp_path: Path) -> None:
    path = tiny_reranker_gguf(tmp_path / "bert.gguf", tiny_bert_reranker())
    writer = adapter_writer(tmp_path / "a.gguf", "bert")
    for half, shape in (("a", (4, 64)), ("b", (2, 4))):
        writer.add_tensor(f"token_types.weight.lora_{half}", np.ones(shape, np.float32))
    writer.write()
    with pytest.raises(ModelError, match=r"a\.gguf: .*'token_types\.weight'"):
        load_model(path, adapters=[AdapterFile(str(tmp_path / "a.gguf"), "a", 1.0)])
