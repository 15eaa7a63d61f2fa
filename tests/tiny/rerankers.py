"""Tiny random rerankers, as GGUF files and as their Hugging Face originals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.convert.checkpoints import save_tokenizer, saved, saved_with_words
from tests.convert.jina import save_jina2
from tests.tiny.bert import randomised
from tests.tiny.converted import converted
from tests.tiny.decoders import TinyDecoder
from tests.tiny.encoders import SIZES
from tests.tiny.jina import JinaRanker
from tests.tiny.llama import WORDS, vocabulary
from tests.tiny.words import VOCABULARY

SAID = (*WORDS, "yes", "no")
YES, NO = (vocabulary(SAID).index(word) for word in ("yes", "no"))
_QWEN3 = {"head_dim": 24, "vocab_size": len(vocabulary(SAID))}
QWEN3 = TinyDecoder("qwen3", _QWEN3)
QWEN3_TIED = TinyDecoder("qwen3", {**_QWEN3, "tie_word_embeddings": True}, seed=1)
#: Names of XLM-RoBERTa's parts in the second Jina rerankers, in the order of renaming.
_JINA2 = {
    "embeddings.LayerNorm": "emb_ln", "encoder.layer.": "encoder.layers.",
    "attention.output.dense": "mixer.out_proj", "attention.output.LayerNorm": "norm1",
    "intermediate.dense": "mlp.fc1", "output.dense": "mlp.fc2", "output.LayerNorm": "norm2",
}  # fmt: skip
TEMPLATE = "judge {document} by {query}: "


def tiny_bge(vocabulary: int = SIZES["vocab_size"]) -> Any:
    """Return XLM-RoBERTa with a classifier."""
    from transformers import XLMRobertaConfig, XLMRobertaForSequenceClassification

    torch.default_generator.manual_seed(3)
    sizes = SIZES | {"num_hidden_layers": 2, "max_position_embeddings": 129, "vocab_size": vocabulary}
    config = XLMRobertaConfig(**sizes, type_vocab_size=1, num_labels=1, layer_norm_eps=1e-12)
    return randomised(XLMRobertaForSequenceClassification(config).float().eval())


def tiny_bert_reranker() -> Any:
    """Return BERT with a pooler, a classifier, and token types for queries and documents."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.default_generator.manual_seed(6)
    config = BertConfig(**SIZES, num_labels=1)
    return randomised(BertForSequenceClassification(config).float().eval())


def tiny_gte(pooling: str, vocabulary: int = SIZES["vocab_size"]) -> Any:
    """Return ModernBERT with a classifier."""
    from transformers import ModernBertConfig, ModernBertForSequenceClassification

    torch.default_generator.manual_seed(4)
    config = ModernBertConfig(
        **SIZES | {"vocab_size": vocabulary},
        local_attention=12,
        norm_eps=1e-12,
        num_labels=1,
        classifier_pooling=pooling,
    )
    return randomised(ModernBertForSequenceClassification(config).float().eval())


def tiny_jina() -> Any:
    """Return the first Jina reranker."""
    torch.default_generator.manual_seed(5)
    return randomised(JinaRanker().float().eval())


def save_jina_reranker(folder: Path, model: Any) -> Path:
    return save_jina2(folder, model, "JinaBertForSequenceClassification")


def save_jina_reranker2(folder: Path, model: Any) -> Path:
    """Save XLM-RoBERTa like the second Jina rerankers; return the folder."""
    saved_with_words(folder, model)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if ".attention.self.query." in name]:
        parts = [tensors.pop(name.replace("query", part)) for part in ("query", "key", "value")]
        tensors[name.replace("attention.self.query", "mixer.Wqkv")] = torch.cat(parts)
    for theirs, ours in _JINA2.items():
        tensors = {name.replace(theirs, ours): values for name, values in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


def tiny_reranker_gguf(path: Path, model: Any, save: Callable[..., Path] = saved_with_words) -> Path:
    return converted(model, save).write(path)


def tiny_jina_without_pooler_gguf(path: Path, model: Any) -> Path:
    """Write the first Jina reranker like llama.cpp's converter."""
    found = converted(model, save_jina_reranker)
    for kind in ("weight", "bias"):
        found.tensors[f"cls.{kind}"] = found.tensors.pop(f"cls.output.{kind}")
    return found.write(path)


def save_qwen3_reranker(folder: Path, model: Any) -> Path:
    """Save `model` as published, where only the name marks it as a reranker; return the folder."""
    save_tokenizer(saved(folder, model, tokenizer=False), words=SAID)
    (folder / "README.md").write_text("---\nlicense: none\n---\n# Qwen3-Reranker-0.6B\n")
    return folder


def tiny_qwen3_reranker_gguf(path: Path, model: Any, **stated: Any) -> Path:
    """Write `model` with a template that fits short contexts, and the metadata `stated`."""
    found = converted(model, save_qwen3_reranker)
    found.set({"tokenizer.chat_template.rerank": TEMPLATE, **stated})
    return found.write(path)


def framed(*texts: list[int]) -> list[int]:
    """Return [CLS] a [SEP] b [SEP]."""
    end = VOCABULARY.index("[SEP]")
    return [VOCABULARY.index("[CLS]"), *(token for text in texts for token in (*text, end))]
