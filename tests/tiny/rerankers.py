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
from tests.tiny.decoders import SIZES as SIZES_OF_DECODERS
from tests.tiny.decoders import TinyDecoder
from tests.tiny.encoders import SIZES
from tests.tiny.jina import JinaRanker
from tests.tiny.llama import WORDS, vocabulary
from tests.tiny.words import VOCABULARY

SAID = (*WORDS, "yes", "no")
YES, NO = (vocabulary(SAID).index(word) for word in ("yes", "no"))


class TinyVisionReranker(TinyDecoder):
    """Qwen3-VL, whose rerankers judge texts by their language model."""

    def config(self) -> Any:
        from transformers import AutoConfig

        tower = {
            "depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64,
            "deepstack_visual_indexes": [0], "num_position_embeddings": 16,
        }  # fmt: skip
        text = {**SIZES_OF_DECODERS, **self.settings}
        tied = {"tie_word_embeddings": bool(self.settings.get("tie_word_embeddings"))}
        return AutoConfig.for_model(self.hf, text_config=text, vision_config=tower, **tied)

    def untrained(self) -> Any:
        from transformers import AutoModelForImageTextToText

        return AutoModelForImageTextToText.from_config(self.config(), attn_implementation="eager")


_QWEN3 = {"head_dim": 24, "vocab_size": len(vocabulary(SAID))}
QWEN3 = TinyDecoder("qwen3", _QWEN3)
QWEN3_TIED = TinyDecoder("qwen3", {**_QWEN3, "tie_word_embeddings": True}, seed=1)
_VISION = {
    "vocab_size": len(vocabulary(SAID)), "head_dim": 16,
    "rope_parameters": {"rope_theta": 1e6, "rope_type": "default", "mrope_section": [4, 2, 2]},
}  # fmt: skip
QWEN3_VL = TinyVisionReranker("qwen3_vl", _VISION, seed=2)
QWEN3_VL_TIED = TinyVisionReranker("qwen3_vl", {**_VISION, "tie_word_embeddings": True}, seed=3)
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
    name = "Qwen3-VL-Reranker-2B" if hasattr(model.config, "vision_config") else "Qwen3-Reranker-0.6B"
    (folder / "README.md").write_text(f"---\nlicense: none\n---\n# {name}\n")
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
