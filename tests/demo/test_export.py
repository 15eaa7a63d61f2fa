"""The exported model computes in Puna's engine what torch does, with the same tokens and chat format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from demo.export import export
from demo.model import DemoModel, Shape
from demo.packing import LONG, SHORT, encode, pack
from demo.vocabulary import BOS_ID, END_ID, chat_prompt, train_vocabulary
from puna.batch import Batch
from puna.chat.templates.choose import chat_format
from puna.chat.templates.model_facts import read_facts
from puna.gguf import GGMLType, open_gguf
from puna.kvcache.types import KVTypes
from puna.model.load import load_model
from puna.ops import backend_named
from puna.tokenizer import tokenizer_from_gguf
from tests.tiny.forward import logits_of

SHAPE = Shape(vocabulary=400, hidden=64, layers=2, heads=4, kv_heads=2, feed_forward=96, context=64)
TALK = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "What is 12+34?"},
    {"role": "assistant", "content": "12 + 34 = 46."},
    {"role": "user", "content": "tell me a story, it's late"},
]
STORY = 'Once upon a time, there lived a fox.\n\n"Oh!" he said. The end.'
TEXTS = [m["content"] for m in TALK] * 5 + [STORY] * 5


@pytest.fixture(scope="module")
def vocabulary() -> Tokenizer:
    return train_vocabulary(TEXTS, SHAPE.vocabulary)


@pytest.fixture(scope="module")
def model(vocabulary: Tokenizer) -> DemoModel:
    torch.default_generator.manual_seed(4)
    made = DemoModel(Shape(**{**SHAPE.__dict__, "vocabulary": vocabulary.get_vocab_size()}))
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made.eval()


@pytest.fixture(scope="module")
def exported(model: DemoModel, vocabulary: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "demo.gguf"
    export(model, vocabulary, path, GGMLType.F32)
    return path


def test_the_engine_computes_the_same_as_torch(model: DemoModel, exported: Path) -> None:
    ids = [BOS_ID, *np.random.default_rng(0).integers(3, model.shape.vocabulary, 40).tolist()]
    with torch.inference_mode():
        expected = torch.log_softmax(model(torch.tensor([ids]))[0], -1)
        loaded = load_model(exported, ops=backend_named("reference"))
        cache = loaded.make_cache(sequences=1, context=64, types=KVTypes.parse("f32"))
        rows = list(range(len(ids)))
        batch = Batch.of(ids, rows, [0] * len(rows), rows)
        cache.start_forward(batch)
        got = torch.log_softmax(logits_of(loaded.model, batch, cache), -1)
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_the_engine_tokenises_like_the_training(vocabulary: Tokenizer, exported: Path) -> None:
    with open_gguf(exported) as file:
        tokenizer = tokenizer_from_gguf(file)
    for text in [*TEXTS, "  two  spaces\n\n\nlines 1234567 Ünïcode 狐 🦊", chat_prompt(TALK)]:
        assert tokenizer.encode(text, add_special=False) == vocabulary.encode(text).ids
        assert tokenizer.decode(vocabulary.encode(text).ids) == text
    assert tokenizer.encode("fox")[0] == BOS_ID
    assert {BOS_ID, END_ID} <= tokenizer.eos_ids


def test_the_chat_template_renders_the_training_format(exported: Path) -> None:
    with open_gguf(exported) as file:
        rendered = chat_format(read_facts(file)).render(TALK)
        assert rendered == chat_prompt(TALK)
        assert chat_format(read_facts(file)).render(TALK[1:2]) == chat_prompt(TALK[1:2])


def test_packing_learns_only_answers_and_keeps_documents_whole(vocabulary: Tokenizer) -> None:
    documents = [{"messages": TALK[1:3]}, {"text": STORY}] * 40 + [{"text": STORY * 60}]
    encoded = list(encode(documents, vocabulary))
    for (ids, learn), document in zip(encoded, documents, strict=True):
        learned = vocabulary.decode([i for i, wanted in zip(ids, learn, strict=True) if wanted])
        assert learned.startswith(document["text"] if "text" in document else TALK[2]["content"])
        assert "What is" not in learned
    short, long = pack(encoded, seed=1)
    assert short.tokens.shape[1] == SHORT + 1
    assert long.tokens.shape[1] == LONG + 1
    assert long.learn.sum(axis=1).max() == LONG
    assert (short.tokens[:, 0] == BOS_ID).all()
    starts = sum(int((row == BOS_ID).sum()) for row in short.tokens)
    assert starts >= 80
    assert short.learn.sum() == sum(sum(learn[1:]) for ids, learn in encoded if len(ids) <= SHORT)
