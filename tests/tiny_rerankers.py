"""Tiny random rerankers, as GGUF files and as their Hugging Face originals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.tiny_bert import VOCABULARY, bert_tensors, randomised, write_encoder
from tests.tiny_decoders import TinyDecoder
from tests.tiny_encoders import SIZES, TinyModernBert, encoder_tensors
from tests.tiny_jina import HIDDEN, TinyJinaBertV2

QWEN3 = TinyDecoder("qwen3", {"head_dim": 24})
YES, NO = 17, 23  # tokens
TEMPLATE = "judge {document} by {query}: "


def tiny_bge() -> Any:
    """XLM-RoBERTa with a classifier."""
    from transformers import XLMRobertaConfig, XLMRobertaForSequenceClassification

    torch.manual_seed(3)
    sizes = SIZES | {"num_hidden_layers": 2, "max_position_embeddings": 129}
    config = XLMRobertaConfig(**sizes, type_vocab_size=1, num_labels=1, layer_norm_eps=1e-12)
    return randomised(XLMRobertaForSequenceClassification(config).float().eval())


def tiny_bge_gguf(path: Path, model: Any, metadata: dict[str, Any] | None = None) -> Path:
    """As converters write it: pooling is not stated, and positions count from 0."""
    keys = {
        "block_count": 2,
        "context_length": 128,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.layer_norm_epsilon": 1e-12,
        "attention.causal": False,
    }
    tensors = bert_tensors(model.roberta)
    tensors["position_embd.weight"] = tensors["position_embd.weight"][1:]
    return write_encoder(path, "bert", keys | (metadata or {}), tensors | _classifier(model))


def tiny_gte(pooling: str) -> Any:
    """ModernBERT with a classifier."""
    from transformers import ModernBertConfig, ModernBertForSequenceClassification

    torch.manual_seed(4)
    config = ModernBertConfig(
        **SIZES, local_attention=12, norm_eps=1e-12, num_labels=1, classifier_pooling=pooling
    )
    return randomised(ModernBertForSequenceClassification(config).float().eval())


def tiny_gte_gguf(path: Path, model: Any, metadata: dict[str, Any] | None = None) -> Path:
    keys = TinyModernBert().metadata() | {"pooling_type": None} | (metadata or {})
    return write_encoder(path, "modern-bert", keys, encoder_tensors(model.model) | _classifier(model))


def tiny_jina() -> tuple[TinyJinaBertV2, Any]:
    """The first Jina reranker, whose classifier is one linear and a hyperbolic tangent, and its sizes."""
    config = TinyJinaBertV2(kind="code")
    model = config.build()
    model.cls = torch.nn.Linear(HIDDEN, 1)
    return config, model


def tiny_jina_gguf(path: Path, config: TinyJinaBertV2, model: Any) -> Path:
    """As llama.cpp's converter writes it: pooling is not stated."""
    keys = config.metadata() | {"pooling_type": None}
    return write_encoder(path, config.architecture, keys, encoder_tensors(model))


def tiny_qwen3_reranker_gguf(path: Path, model: Any, labels: tuple[str, ...] | None = ("yes", "no")) -> Path:
    """The rows of the output matrix that predict "yes" and "no" are the classifier."""
    found = QWEN3.contents(model)
    found.say({"pooling_type": 4, "classifier.output_labels": labels and list(labels)})
    found.say({"tokenizer.chat_template.rerank": TEMPLATE})
    del found.tensors["output.weight"]
    found.tensors["cls.output.weight"] = model.lm_head.weight.detach().numpy()[[YES, NO]]
    return found.write(path)


def _classifier(model: Any) -> dict[str, np.ndarray]:
    names = {
        "classifier.dense": "cls", "classifier.out_proj": "cls.output", "head.dense": "cls",
        "head.norm": "cls.norm", "classifier": "cls.output",
    }  # fmt: skip
    found = {}
    for name, tensor in model.state_dict().items():
        module, kind = name.rsplit(".", 1)
        if module in names:
            found[f"{names[module]}.{kind}"] = tensor.numpy()
    return found


def framed(*texts: list[int]) -> list[int]:
    """[CLS] a [SEP] b [SEP]"""
    end = VOCABULARY.index("[SEP]")
    return [VOCABULARY.index("[CLS]"), *(token for text in texts for token in (*text, end))]
