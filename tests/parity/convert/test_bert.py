"""BERT-like encoders and rerankers, converted by us and by llama.cpp's converter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from puna.convert import convert, convert_adapters
from puna.gguf import FileType
from tests.convert.checkpoints import save_modules, save_tokenizer, saved, saved_with_words
from tests.convert.jina import save_jina2, save_jina3
from tests.convert.test_encoders import checkpoint
from tests.model.models.parity import original
from tests.parity.convert.conversion import PEERS, UNKNOWN, Lineage, Published, theirs
from tests.tiny.encoders import TinyJinaBertV3, TinyModernBert
from tests.tiny.jina import TinyJinaBertV2
from tests.tiny.llama import vocabulary
from tests.tiny.rerankers import save_jina_reranker2, tiny_bert_reranker, tiny_bge, tiny_gte

pytestmark = PEERS


def _modern_bert(config: dict[str, Any]) -> dict[str, Any]:
    return {
        **UNKNOWN, "global_attn_every_n_layers": 3, "layer_types": None, "rope_parameters": None,
        "global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "layer_norm_eps": config["norm_eps"],
        "cls_token_id": 0, "sep_token_id": 1,
    }  # fmt: skip


BERT = Lineage(
    ("bert",),
    published={
        "ModernBertForSequenceClassification": Published(_modern_bert),
        "ModernBertModel": Published(_modern_bert),
        "NomicBertModel": Published(lambda config: UNKNOWN),
    },
    differing={
        **{
            name: {"tokenizer.ggml.cls_token_id"}
            for name in ("bert", "jina-bert-v2", "nomic-bert", "nomic-bert-moe")
        },
        "jina-bert-v3": {"tokenizer.ggml.token_type_count"},  # theirs has it with the real vocabulary only
        # Theirs ends every text, whatever the tokenizer does.
        "modern-bert": {"tokenizer.ggml.cls_token_id", "tokenizer.ggml.add_eos_token"},
    },
)


@pytest.mark.parametrize("name", ["bert", "nomic-bert", "nomic-bert-moe"])
def test_encoders_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoint", name)
    save_modules(folder)
    convert(BERT.as_published(folder), tmp_path / "ours.gguf", FileType.F32)
    BERT.check_same(tmp_path / "ours.gguf", theirs(folder, tmp_path / "theirs.gguf", own_vocabulary=True))


def test_modern_bert_is_that_of_llama_cpp(tmp_path: Path) -> None:
    """Its vocabulary is one of bytes."""
    folder = saved(tmp_path / "checkpoint", original(TinyModernBert(vocabulary=len(vocabulary()))))
    convert(BERT.as_published(folder), tmp_path / "ours.gguf", FileType.F32)
    BERT.check_same(tmp_path / "ours.gguf", theirs(folder, tmp_path / "theirs.gguf", own_vocabulary=True))


#: Rerankers with byte vocabularies: how they are built and saved.
RANKING: dict[str, tuple[Callable[[], Any], Callable[..., Path]]] = {
    "xlm-roberta": (lambda: tiny_bge(len(vocabulary())), saved_with_words),
    "jina 2": (lambda: tiny_bge(len(vocabulary())), save_jina_reranker2),
    "modern-bert": (lambda: tiny_gte("cls", len(vocabulary())), saved_with_words),
}


@pytest.mark.parametrize("name", RANKING)
def test_rerankers_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    build, save = RANKING[name]
    folder = save(tmp_path / "checkpoint", build())
    save_tokenizer(folder)
    convert(BERT.as_published(folder), tmp_path / "ours.gguf", FileType.F32)
    own = name == "modern-bert"  # theirs reads no byte vocabularies of the others
    out = theirs(folder, tmp_path / "theirs.gguf", own_vocabulary=own)
    BERT.check_same(tmp_path / "ours.gguf", out, apart=() if own else ("tokenizer.ggml.token_type_count",))


def test_berts_reranker_is_that_of_llama_cpp_but_for_the_pooler(tmp_path: Path) -> None:
    folder = saved_with_words(tmp_path / "checkpoint", tiny_bert_reranker())
    convert(folder, tmp_path / "ours.gguf", FileType.F32)
    out = theirs(folder, tmp_path / "theirs.gguf", own_vocabulary=True)
    BERT.check_same(tmp_path / "ours.gguf", out, alone=("cls.weight", "cls.bias"))


def test_jina_2_is_that_of_llama_cpp(tmp_path: Path) -> None:
    """The models for code are left out: theirs fuses their gate and up matrices."""
    for kind in ("gated", "plain"):
        tiny = TinyJinaBertV2(kind=kind)
        folder = save_jina2(tmp_path / kind, original(tiny))
        convert(folder, tmp_path / "ours.gguf", FileType.F32)
        out = tmp_path / f"{kind}.gguf"
        BERT.check_same(tmp_path / "ours.gguf", theirs(folder, out, own_vocabulary=True))


def test_jina_3_and_its_adapters_are_those_of_llama_cpp(tmp_path: Path) -> None:
    folder = save_jina3(tmp_path / "checkpoint", original(TinyJinaBertV3(vocabulary=len(vocabulary()))))
    save_tokenizer(folder)
    convert(folder, tmp_path / "ours.gguf", FileType.F32)
    adapters = convert_adapters(folder, lambda name: tmp_path / f"{name}.gguf", tmp_path / "ours.gguf")
    BERT.check_same(tmp_path / "ours.gguf", theirs(folder, tmp_path / "theirs.gguf"))
    for name, path in adapters.items():
        BERT.check_same(path, tmp_path / f"lora-{name}-theirs.gguf")
