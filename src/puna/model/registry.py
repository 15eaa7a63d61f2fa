"""Model classes by architecture; only the requested module is imported."""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from typing import Final

from puna.errors import UnsupportedModelError, shown
from puna.model.base import TextModel

#: By `general.architecture`: the file in `puna.model.models` and the class in it.
_MODELS: Final = {
    "arwkv7": ("rwkv7", "Arwkv7"),
    "bert": ("bert", "Bert"),
    "cohere2": ("cohere", "Cohere2"),
    "command-r": ("cohere", "Cohere"),
    "deepseek2": ("deepseek2", "DeepSeek2"),
    "deepseek2-ocr": ("deepseekocr", "DeepSeekOcr"),
    "deepseekocr": ("deepseekocr", "DeepSeekOcr"),
    "ernie4_5": ("ernie4_5", "Ernie45"),
    "ernie4_5-moe": ("ernie4_5", "Ernie45"),
    "exaone4": ("exaone4", "Exaone4"),
    "falcon-h1": ("falcon_h1", "FalconH1"),
    "gemma": ("gemma", "Gemma"),
    "gemma-embedding": ("gemma_embedding", "GemmaEmbedding"),
    "gemma2": ("gemma2", "Gemma2"),
    "gemma3": ("gemma3", "Gemma3"),
    "gemma3n": ("gemma3n", "Gemma3n"),
    "gemma4": ("gemma4", "Gemma4"),
    "glm4": ("glm4", "Glm4"),
    "glm4moe": ("glm4moe", "Glm4Moe"),
    "glm4moelite": ("deepseek2", "DeepSeek2"),
    "glmocr": ("glmocr", "GlmOcr"),
    "gpt-oss": ("gpt_oss", "GptOss"),
    "gptoss": ("gpt_oss", "GptOss"),
    "granite": ("granite", "Granite"),
    "granitehybrid": ("granitehybrid", "GraniteHybrid"),
    "granitemoe": ("granite", "Granite"),
    "hunyuan-dense": ("hunyuan", "HunyuanDense"),
    "jina-bert-v2": ("jina_bert_v2", "JinaBertV2"),
    "jina-bert-v3": ("jina_bert_v3", "JinaBertV3"),
    "kimi-linear": ("kimi_linear", "KimiLinear"),
    "lfm2": ("lfm2", "Lfm2"),
    "lfm2moe": ("lfm2", "Lfm2"),
    "llama": ("llama", "Llama"),
    "llama4": ("llama4", "Llama4"),
    "mamba": ("mamba", "MambaDecoder"),
    "mamba2": ("mamba2", "Mamba2Decoder"),
    "mimo2": ("mimo2", "MiMo2"),
    "minimax-m2": ("minimax_m2", "MiniMaxM2"),
    "mistral3": ("mistral3", "Mistral3"),
    "mistral4": ("deepseek2", "DeepSeek2"),
    "mllama": ("mllama", "Mllama"),
    "nemotron_h": ("nemotron_h", "NemotronH"),
    "nemotron_h_moe": ("nemotron_h", "NemotronH"),
    "modern-bert": ("modern_bert", "ModernBert"),
    "nomic-bert": ("nomic_bert", "NomicBert"),
    "nomic-bert-moe": ("nomic_bert_moe", "NomicBertMoe"),
    "olmo2": ("olmo2", "Olmo2"),
    "olmo3": ("olmo2", "Olmo2"),
    "olmoe": ("olmoe", "Olmoe"),
    "phi3": ("phi3", "Phi3"),
    "qwen2": ("qwen2", "Qwen2"),
    "qwen25vl": ("qwen2vl", "Qwen2VL"),
    "qwen2moe": ("qwen2moe", "Qwen2Moe"),
    "qwen2vl": ("qwen2vl", "Qwen2VL"),
    "qwen3": ("qwen3", "Qwen3"),
    "qwen35": ("qwen3next", "Qwen3Next"),
    "qwen35moe": ("qwen3next", "Qwen3Next"),
    "qwen3moe": ("qwen3", "Qwen3"),
    "qwen3next": ("qwen3next", "Qwen3Next"),
    "qwen3vl": ("qwen3vl", "Qwen3VL"),
    "qwen3vlmoe": ("qwen3vl", "Qwen3VL"),
    "rwkv7": ("rwkv7", "Rwkv7"),
    "seed_oss": ("seed_oss", "SeedOss"),
    "smollm3": ("smollm3", "SmolLM3"),
    "starcoder2": ("starcoder2", "Starcoder2"),
    "t5": ("t5", "T5"),
    "t5encoder": ("t5encoder", "T5Encoder"),
}

_LONGEST_NAME: Final = 100  # architectures longer than this are not compared with known ones in full


def model_for(architecture: str) -> type[TextModel]:
    """Return the model class of `architecture`. Raises `UnsupportedModelError` that lists known ones."""
    if architecture not in _MODELS:
        near = get_close_matches(architecture[:_LONGEST_NAME], _MODELS, n=1)
        nearest = f", the nearest being {near[0]}" if near else ""
        raise UnsupportedModelError(
            f"architecture {shown(architecture)} is not supported; "
            f"supported: {', '.join(supported())}{nearest}"
        )
    module, name = _MODELS[architecture]
    model: type[TextModel] = getattr(importlib.import_module(f"puna.model.models.{module}"), name)
    return model


def supported() -> list[str]:
    """Return all supported architectures, sorted."""
    return sorted(_MODELS)
