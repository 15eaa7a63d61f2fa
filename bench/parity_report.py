"""The table of all architectures that Puna's own engine runs.

python bench/parity_report.py        # regenerates the table from docs/models.json
"""

from __future__ import annotations

from dataclasses import dataclass

from pages import DOCS, Report

from puna.model.registry import model_for, supported

#: Well-known models of each architecture.
FAMILIES = {
    "apertus": "Apertus",
    "arcee": "AFM",
    "arctic": "Snowflake Arctic",
    "arwkv7": "ARWKV 7B",
    "baichuan": "Baichuan and Baichuan 2, 7B and 13B",
    "bailingmoe2": "Ling 2, Ring 2",
    "bailingmoe3": "Ling 3",
    "bert": "BERT, RoBERTa, MiniLM, BGE, E5, GTE, Snowflake Arctic Embed; rerankers: BGE, MS MARCO, Jina 2",
    "bitnet": "BitNet b1.58 of 2024",
    "bitnet-b1.58": "BitNet b1.58 2B4T; its activations are not rounded to 8 bits",
    "bloom": "BLOOM, BLOOMZ",
    "chatglm": "GLM-4 of 2024, ChatGLM 3",
    "codeshell": "CodeShell",
    "cohere2": "Command R7B, Command A",
    "cohere2moe": "North Mini Code",
    "command-r": "Command R, Command R+, Aya 23",
    "dbrx": "DBRX",
    "deepseek": "DeepSeekMoE",
    "deepseek2": "DeepSeek V2, V2-Lite, V3, R1; Kimi K2",
    "deepseek2-ocr": "DeepSeek-OCR and DeepSeek-OCR 2 beside their mmproj files",
    "deepseek32": "DeepSeek V3.2",
    "deepseek4": "DeepSeek V4",
    "deepseekocr": "DeepSeek-OCR in one file",
    "dots1": "dots.llm1",
    "eagle3": "EAGLE-3 heads",
    "ernie4_5": "ERNIE 4.5",
    "ernie4_5-moe": "ERNIE 4.5 with experts",
    "exaone": "EXAONE 3, 3.5, Deep",
    "exaone-moe": "K-EXAONE",
    "exaone4": "EXAONE 4",
    "falcon": "Falcon 7B, 40B and 180B; Falcon 2",
    "falcon-h1": "Falcon-H1",
    "gemma": "Gemma, CodeGemma",
    "gemma-embedding": "EmbeddingGemma",
    "gemma2": "Gemma 2",
    "gemma3": "Gemma 3, MedGemma",
    "gemma3n": "Gemma 3n",
    "gemma4": "Gemma 4",
    "gemma4-assistant": "draft models of Gemma 4",
    "glm-dsa": "GLM-5, 5.1, 5.2",
    "glm4": "GLM-4; GLM-4.1V and GLM-OCR beside their mmproj files",
    "glm4moe": "GLM-4.5, 4.5V, 4.6, 4.7",
    "glm4moelite": "GLM-4.7 Flash",
    "glm5-next": "GLM-5.3 Flash, without its vision tower",
    "glmocr": "GLM-OCR in one file",
    "gpt-oss": "gpt-oss",
    "gpt2": "GPT-2, DistilGPT2, Cerebras-GPT",
    "gptneox": "GPT-NeoX, Pythia, Dolly 2, RedPajama-INCITE",
    "gptoss": "gpt-oss, files of Ollama's",
    "granite": "Granite 3, Granite Speech",
    "granite_swa": "Granite Swash",
    "granitehybrid": "Granite 4",
    "granitemoe": "Granite 3 with experts",
    "grok": "Grok 1",
    "hunyuan-dense": "Hunyuan",
    "hunyuan-moe": "Hunyuan A13B",
    "hy_v3": "Hy 3",
    "hy_v4": "Hy 4",
    "internlm2": "InternLM 2, 2.5",
    "jais": "Jais",
    "jais2": "Jais 2",
    "jamba": "Jamba, Jamba Reasoning",
    "jina-bert-v2": "Jina Embeddings 2, Jina Reranker 1",
    "jina-bert-v3": "Jina Embeddings 3",
    "kimi-linear": "Kimi Linear",
    "laguna": "Laguna XS, Laguna M",
    "lfm2": "LFM2, LFM2.5, LFM2-Audio",
    "lfm2moe": "LFM2 and LFM2.5 with experts",
    "llama": "Llama 2, 3, 3.1, 3.2, 3.3; Mistral, Mixtral, TinyLlama, Yi, Vicuna, SmolLM 2",
    "llama4": "Llama 4 Scout and Maverick, MobileLLM",
    "mamba": "Mamba, Falcon Mamba",
    "mamba2": "Codestral Mamba",
    "mellum": "Mellum 2",
    "mimo2": "MiMo-V2-Flash, MiMo-V2.5",
    "minicpm": "MiniCPM 1, 2, 4",
    "minicpm3": "MiniCPM 3",
    "minimax-m2": "MiniMax-M2",
    "minimax-m3": "MiniMax-M3",
    "mistral3": "Mistral 3, Ministral 3",
    "mistral4": "Mistral 4",
    "mllama": "Llama 3.2 Vision",
    "modern-bert": "ModernBERT, GTE ModernBERT, Granite Embedding R2",
    "muse-glimmer": "Muse Glimmer, without its vision tower",
    "mpt": "MPT",
    "nemotron": "Nemotron 3 and 4, Minitron",
    "nemotron_h": "Nemotron-H, Nemotron Nano 2",
    "nemotron_h_moe": "Nemotron 3 Nano",
    "nomic-bert": "Nomic Embed 1, 1.5",
    "nomic-bert-moe": "Nomic Embed 2",
    "olmo2": "OLMo 2",
    "olmo3": "OLMo 3",
    "olmoe": "OLMoE",
    "openelm": "OpenELM",
    "orion": "Orion 14B",
    "paddleocr": "PaddleOCR-VL",
    "phi2": "Phi-1, Phi-1.5, Phi-2",
    "phi3": "Phi-3, Phi-3.5, Phi-4, Phi-4-mini",
    "plamo3": "PLaMo 3",
    "qwen2": "Qwen2, Qwen2.5, DeepSeek R1 distilled into Qwen; dots.ocr",
    "qwen25vl": "Qwen2.5-VL in one file",
    "qwen2moe": "Qwen1.5-MoE, Qwen2 57B",
    "qwen2vl": "Qwen2-VL, Qwen2.5-VL, Qwen2.5-Omni and Nanonets-OCR beside their mmproj files",
    "qwen3": "Qwen3, Qwen3 Embedding, Qwen3 Reranker; LightOnOCR",
    "qwen35": "Qwen3.5, Qwen3.6",
    "qwen35moe": "Qwen3.5, Qwen3.6 with experts",
    "qwen4exp": "Qwen3.8 Flash Next",
    "qwen3moe": "Qwen3 with experts, Qwen3-Coder",
    "qwen3next": "Qwen3-Next, Qwen3-Coder-Next",
    "qwen3vl": "Qwen3-VL, Qwen3-VL Reranker, Qwen3-ASR",
    "qwen3vlmoe": "Qwen3-VL with experts, Qwen3-Omni",
    "refact": "Refact",
    "rwkv6": "RWKV-6 World",
    "rwkv6qwen2": "QRWKV6",
    "rwkv7": "RWKV-7 World, G1",
    "seed_oss": "Seed-OSS",
    "smallthinker": "SmallThinker",
    "smollm3": "SmolLM3",
    "stablelm": "Stable LM 3B, Stable LM 2, Stable Code",
    "starcoder": "StarCoder, SantaCoder, Granite 20B Code",
    "starcoder2": "StarCoder 2",
    "step35": "Step 3.5, 3.7",
    "t5": "T5, Flan-T5, mT5, MADLAD-400",
    "t5encoder": "encoders of T5, Sentence-T5, GTR",
    "whisper": "Whisper, Whisper large v3 turbo, Distil-Whisper; `.en` models",
    "xverse": "XVERSE",
}

#: References beside transformers, for architectures that it lacks or only partly has; tests contain them.
_BESIDE = (
    {
        "bailingmoe2": "transformers' GLM-4.5",
        "codeshell": "transformers' StarCoder 2",
        "deepseek": "transformers' DeepSeek-OCR 2",
        "exaone": "transformers' Llama",
        "internlm2": "transformers' Llama",
        "minicpm": "transformers' Granite",
        "orion": "transformers' Stable LM",
        "xverse": "transformers' Llama",
    }
    | dict.fromkeys(("arctic", "baichuan", "grok", "jais", "openelm", "refact"), "llama.cpp")
    | dict.fromkeys(("arwkv7", "rwkv7"), "the paper's formulas in torch")
    | dict.fromkeys(("plamo3", "rwkv6", "rwkv6qwen2", "smallthinker"), "llama.cpp")
    | {"eagle3": "vLLM's formulas in torch, llama.cpp", "nomic-bert-moe": "its experts in torch"}
)


@dataclass(frozen=True)
class Run:
    """The largest difference of each architecture from its reference, with all other code the same."""

    reference: str
    differences: dict[str, float]


def table(run: Run) -> str:
    """Format the architectures as Markdown."""
    text = [
        f"Reference: {run.reference}.",
        "",
        "| `general.architecture` | models | largest difference | file |",
        "|---|---|---:|---|",
    ]
    for name in supported():
        model = model_for(name)
        states = "" if model.generates else " (hidden states)"
        beside = f"; {_BESIDE[name]}" if name in _BESIDE else ""
        file = model.__module__.rpartition(".")[2]
        text.append(
            f"| `{name}` | {FAMILIES[name]}{beside} | {run.differences[name]:.0e}{states} "
            f"| [{file}.py](../src/puna/model/models/{file}.py) |"
        )
    return "\n".join(text) + "\n"


REPORT = Report(DOCS / "models.json", "make docs-models", Run, {DOCS / "models.md": table})

if __name__ == "__main__":
    REPORT.rewrite()
