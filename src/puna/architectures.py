"""One record for each architecture, by its name in files (`general.architecture`).

Code is named by strings, so that only the modules a model needs are imported. To add an architecture, write
its model, and its record here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True)
class DefaultTemplate:
    """A chat template for models whose answers end with `end` and whose vocabulary has `token`, if given."""

    name: str  # of a file in `puna.chat.templates`
    end: str = ""
    token: str = ""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The code, conventions and defaults of models of one architecture."""

    model: str = ""  # "module:Class" in `puna.model.models`; empty if only its vocabulary is supported
    tower: str = ""  # "module:Class" in `puna.vision.towers`, for vision towers in the model's own file
    projectors: tuple[str, ...] = ()  # types of separate vision and audio towers it works with
    converters: tuple[str, ...] = ()  # modules in `puna.convert.families` that convert it
    #: Order of the rows of queries and keys: "published" as in transformers, with rotated pairs half a head
    #: apart, "paired" with them side by side. Empty if adapters of PEFT cannot be read, because their names
    #: of the model's modules are not known.
    rows: Literal["", "published", "paired"] = ""
    alternating_experts: bool = False  # published experts interleave the rows of gate and up
    pre: str = ""  # pre-tokenizer for files without one
    add_bos: bool | None = None  # default of `add_bos_token`; None: depends on the type of vocabulary
    strips_before_mask: bool = False  # the mask token removes the whitespace before it
    templates: tuple[DefaultTemplate, ...] = ()  # for files without one; the first that fits is used
    told_by_end: bool = True  # whether one of another architecture is used that ends turns in the same way
    answers: str = ""  # family of answers, if templates do not show it
    transcribes: bool = False  # whether it writes what an audio tower in the same file hears
    assists: bool = False  # whether it only drafts for another model, whose states it reads
    tensor_parallel: bool = False  # whether several GPUs can compute each layer (see `puna.model.shares`)
    has_70b: bool = False  # 80 layers mean a 70B model, which llama.cpp quantises more finely


#: The record of all other architectures.
UNKNOWN: Final = Architecture()

#: Architectures with mostly base models have no `templates`.
ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "apertus": Architecture(
        model="apertus:Apertus",
        converters=("llama",),
        rows="published",
        pre="tekken",
        templates=(DefaultTemplate("apertus", end="<|assistant_end|>"),),
    ),
    "arcee": Architecture(model="arcee:Arcee", converters=("llama",), rows="paired"),
    "arctic": Architecture(model="arctic:Arctic", converters=("remote_code",), rows="paired"),
    "arwkv7": Architecture(model="rwkv7:Arwkv7", converters=("rwkv",)),
    "baichuan": Architecture(model="baichuan:Baichuan", converters=("remote_code",)),
    "bailingmoe2": Architecture(
        model="bailingmoe2:BailingMoe2",
        converters=("mixtures",),
        pre="bailingmoe2",
        templates=(DefaultTemplate("ling2"),),
    ),
    "bailingmoe3": Architecture(
        model="bailingmoe3:BailingMoe3",
        converters=("delta",),
        pre="bailingmoe2",
        templates=(DefaultTemplate("ling3"),),
    ),
    "bert": Architecture(model="bert:Bert", converters=("bert",), add_bos=True),
    "bitnet": Architecture(model="bitnet:BitNet", converters=("bitnet",), rows="published"),
    "bitnet-b1.58": Architecture(model="bitnet:BitNet2025", converters=("bitnet",), rows="published"),
    "bloom": Architecture(model="bloom:Bloom", converters=("gpt",)),
    "chatglm": Architecture(
        model="chatglm:ChatGlm", converters=("small_lineages",), templates=(DefaultTemplate("glm4"),)
    ),
    "codeshell": Architecture(model="codeshell:CodeShell", converters=("aliases",)),
    "cohere2": Architecture(
        model="cohere:Cohere2",
        converters=("small_lineages",),
        rows="published",
        templates=(DefaultTemplate("command-a", token="<|START_TEXT|>"), DefaultTemplate("command-r")),
    ),
    "cohere2moe": Architecture(
        model="cohere2moe:Cohere2Moe",
        converters=("mixtures",),
        rows="published",
        pre="cohere2moe",
        templates=(DefaultTemplate("command-a"),),
    ),
    "command-r": Architecture(
        model="cohere:Cohere",
        converters=("small_lineages",),
        rows="published",
        templates=(DefaultTemplate("command-r"),),
    ),
    "dbrx": Architecture(model="dbrx:Dbrx", converters=("gpt",)),
    "deci": Architecture(has_70b=True),
    "deepseek": Architecture(
        model="deepseek:DeepSeek",
        converters=("latent",),
        rows="paired",
        add_bos=True,
    ),
    "deepseek2": Architecture(
        model="deepseek2:DeepSeek2",
        projectors=("kimik25",),
        converters=("latent",),
        pre="deepseek-v3",
        add_bos=True,
        templates=(
            DefaultTemplate("kimi", token="<|im_middle|>"),
            DefaultTemplate("deepseek3.1", token="<｜search▁begin｜>"),
            DefaultTemplate("deepseek", end="<｜end▁of▁sentence｜>", token="<｜User｜>"),
            DefaultTemplate("deepseek2"),
        ),
    ),
    "deepseek2-ocr": Architecture(
        model="deepseekocr:DeepSeekOcr", projectors=("deepseekocr", "deepseekocr2"), converters=("latent",)
    ),
    "deepseek32": Architecture(
        model="deepseek32:DeepSeek32",
        converters=("latent",),
        pre="deepseek-v3",
        add_bos=True,
        templates=(DefaultTemplate("deepseek3.1"),),
    ),
    "deepseek4": Architecture(
        model="deepseek4:DeepSeek4", converters=("compressed",), pre="deepseek-v3", add_bos=True
    ),
    "deepseekocr": Architecture(
        model="deepseekocr:DeepSeekOcr",
        tower="deepseek_ocr:DeepSeekOcrVision",
        pre="deepseek-v3",
        add_bos=True,
    ),
    "dots1": Architecture(
        model="dots1:Dots1", converters=("mixtures",), rows="published", templates=(DefaultTemplate("dots"),)
    ),
    "eagle3": Architecture(model="eagle3:Eagle3", converters=("eagle",), rows="paired", assists=True),
    "ernie4_5": Architecture(
        model="ernie4_5:Ernie45",
        converters=("small_lineages",),
        rows="published",
        templates=(DefaultTemplate("ernie"),),
    ),
    "ernie4_5-moe": Architecture(
        model="ernie4_5:Ernie45",
        converters=("small_lineages",),
        rows="published",
        templates=(DefaultTemplate("ernie"),),
    ),
    "exaone": Architecture(model="qwen2:Qwen2", converters=("aliases",)),
    "exaone-moe": Architecture(
        model="exaone_moe:ExaoneMoe",
        converters=("mixtures",),
        rows="published",
        pre="exaone-moe",
        templates=(DefaultTemplate("exaone-moe"),),
    ),
    "exaone4": Architecture(
        model="exaone4:Exaone4",
        converters=("llama",),
        rows="published",
        templates=(DefaultTemplate("exaone4"),),
    ),
    "falcon": Architecture(model="falcon:Falcon", converters=("gpt",)),
    "falcon-h1": Architecture(model="falcon_h1:FalconH1", converters=("mamba",)),
    "gemma": Architecture(model="gemma:Gemma", converters=("gemma",), rows="published"),
    "gemma-embedding": Architecture(model="gemma_embedding:GemmaEmbedding", converters=("gemma",)),
    "gemma2": Architecture(model="gemma2:Gemma2", converters=("gemma",), rows="published", add_bos=True),
    "gemma3": Architecture(
        model="gemma3:Gemma3",
        tower="gemma3:Gemma3Vision",
        projectors=("gemma3", "ultravox"),
        converters=("gemma",),
        rows="published",
        add_bos=True,
    ),
    "gemma3n": Architecture(
        model="gemma3n:Gemma3n",
        projectors=("gemma3na", "gemma3nv"),
        converters=("gemma",),
        rows="published",
        add_bos=True,
    ),
    "gemma4": Architecture(
        model="gemma4:Gemma4",
        tower="gemma4:Gemma4Vision",
        projectors=("gemma4a", "gemma4ua", "gemma4uv", "gemma4v"),
        converters=("gemma",),
        rows="published",
        pre="gemma4",
        add_bos=False,
        templates=(DefaultTemplate("gemma4"),),
    ),
    "gemma4-assistant": Architecture(
        model="gemma4_assistant:Gemma4Assistant",
        converters=("gemma",),
        pre="gemma4",
        add_bos=False,
        assists=True,
    ),
    "glm-dsa": Architecture(
        model="deepseek32:GlmDsa",
        converters=("latent",),
        pre="glm4",
        add_bos=False,
        templates=(DefaultTemplate("glm4.7"),),
    ),
    "glm4": Architecture(
        model="glm4:Glm4",
        projectors=("glm4v",),
        converters=("small_lineages",),
        templates=(DefaultTemplate("glm4"),),
    ),
    "glm4moe": Architecture(
        model="glm4moe:Glm4Moe",
        projectors=("glm4v",),
        converters=("small_lineages",),
        rows="published",
        templates=(DefaultTemplate("glm4.5"),),
    ),
    "glm4moelite": Architecture(
        model="deepseek2:DeepSeek2", pre="dbrx", add_bos=False, templates=(DefaultTemplate("glm4.7"),)
    ),
    "glm5-next": Architecture(model="glm5_next:Glm5Next", converters=("delta",), pre="glm4", add_bos=False),
    "glmocr": Architecture(
        model="glmocr:GlmOcr",
        tower="glm_ocr:GlmOcrVision",
        pre="dbrx",
        add_bos=False,
        templates=(DefaultTemplate("glm4.5"),),
    ),
    "gpt-oss": Architecture(
        model="gpt_oss:GptOss",
        projectors=("internvl",),
        converters=("small_lineages",),
        rows="published",
        alternating_experts=True,
        pre="gpt-4o",
        add_bos=False,
        templates=(DefaultTemplate("gpt-oss"),),
        answers="harmony",
    ),
    "gpt2": Architecture(model="gpt2:Gpt2", converters=("gpt",)),
    "gptneox": Architecture(model="gptneox:GptNeoX", converters=("gpt",)),
    "gptoss": Architecture(
        model="gpt_oss:GptOss",
        pre="gpt-4o",
        add_bos=False,
        templates=(DefaultTemplate("gpt-oss"),),
        answers="harmony",
    ),
    "granite": Architecture(
        model="granite:Granite",
        projectors=("granite_speech",),
        converters=("hybrids", "llama"),
        rows="paired",
        templates=(DefaultTemplate("granite3"),),
    ),
    "granite_swa": Architecture(model="granite_swa:GraniteSwa", converters=("mamba",), rows="paired"),
    "granitehybrid": Architecture(
        model="granitehybrid:GraniteHybrid",
        converters=("hybrids",),
        rows="paired",
        templates=(DefaultTemplate("granite"),),
    ),
    "granitemoe": Architecture(
        model="granite:Granite",
        converters=("hybrids", "mamba"),
        rows="paired",
        templates=(DefaultTemplate("granite3"),),
    ),
    "grok": Architecture(model="grok:Grok", converters=("remote_code",)),
    "hunyuan-dense": Architecture(
        model="hunyuan:HunyuanDense",
        converters=("small_lineages",),
        rows="published",
        templates=(DefaultTemplate("hunyuan"),),
    ),
    "hunyuan-moe": Architecture(
        model="hunyuan:HunyuanMoe",
        converters=("small_lineages",),
        rows="published",
        templates=(DefaultTemplate("hunyuan-moe"),),
    ),
    "hy_v3": Architecture(
        model="hy_v3:HyV3",
        converters=("mixtures",),
        rows="published",
        templates=(DefaultTemplate("hy3", token="<｜hy_User:opensource｜>"),),
    ),
    "hy_v4": Architecture(model="hy_v4:HyV4", converters=("latent",), pre="hy_v4", answers="hy4"),
    "internlm2": Architecture(
        model="llama:Llama",
        converters=("aliases",),
        add_bos=True,
    ),
    "jais": Architecture(model="jais:Jais", converters=("remote_code",)),
    "jais2": Architecture(
        model="nemotron:Nemotron",
        converters=("small_lineages",),
        rows="published",
        told_by_end=False,  # its conversations end turns as Llama 3's do, and have the role "ai"
    ),
    "jamba": Architecture(model="jamba:Jamba", converters=("mamba",)),
    "jina-bert-v2": Architecture(model="jina_bert_v2:JinaBertV2", converters=("bert",)),
    "jina-bert-v3": Architecture(
        model="jina_bert_v3:JinaBertV3", converters=("bert",), add_bos=True, strips_before_mask=True
    ),
    "kimi-linear": Architecture(
        model="kimi_linear:KimiLinear", converters=("delta",), templates=(DefaultTemplate("kimi"),)
    ),
    "laguna": Architecture(
        model="laguna:Laguna",
        converters=("mixtures",),
        rows="published",
        pre="laguna",
        add_bos=True,
        templates=(DefaultTemplate("laguna"),),
    ),
    "lfm2": Architecture(
        model="lfm2:Lfm2",
        tower="lfm2:Lfm2Vision",
        projectors=("lfm2", "lfm2a"),
        converters=("convolutional",),
        add_bos=True,
        templates=(DefaultTemplate("lfm2"),),
    ),
    "lfm2moe": Architecture(
        model="lfm2:Lfm2",
        tower="lfm2:Lfm2Vision",
        projectors=("lfm2",),
        converters=("convolutional",),
        add_bos=True,
        templates=(DefaultTemplate("lfm2"),),
    ),
    "llama": Architecture(
        has_70b=True,
        model="llama:Llama",
        projectors=(
            "idefics3",
            "internvl",
            "llava-next",
            "mlp",
            "pixtral",
            "resampler",
            "ultravox",
            "voxtral",
        ),
        converters=("llama", "minicpm"),
        rows="paired",
        add_bos=True,
        tensor_parallel=True,
    ),
    "llama4": Architecture(
        model="llama4:Llama4",
        tower="llama4:Llama4Vision",
        projectors=("llama4",),
        converters=("llama4",),
        pre="gpt-4o",
        add_bos=True,
        templates=(DefaultTemplate("llama4"),),
        answers="llama4",
    ),
    "mamba": Architecture(model="mamba:MambaDecoder", converters=("mamba",)),
    "mamba2": Architecture(model="mamba2:Mamba2Decoder", converters=("mamba",)),
    "mellum": Architecture(model="mellum:Mellum", converters=("mixtures",), rows="published", pre="mellum2"),
    "mimo2": Architecture(model="mimo2:MiMo2", converters=("qwen",), rows="published"),
    "minicpm": Architecture(model="minicpm:MiniCpm", converters=("minicpm",), rows="paired", add_bos=True),
    "minicpm3": Architecture(model="minicpm3:MiniCpm3", converters=("latent",), add_bos=True),
    "minimax-m2": Architecture(
        model="minimax_m2:MiniMaxM2",
        converters=("small_lineages",),
        rows="published",
        templates=(DefaultTemplate("minimax"),),
    ),
    "minimax-m3": Architecture(
        model="minimax_m3:MiniMaxM3",
        projectors=("minimax_m3",),
        converters=("minimax",),
        templates=(DefaultTemplate("minimax-m3"),),
    ),
    "mistral3": Architecture(
        model="mistral3:Mistral3",
        tower="pixtral:PixtralVision",
        projectors=("pixtral",),
        converters=("small_lineages",),
        rows="paired",
        pre="tekken",
        add_bos=True,
        templates=(DefaultTemplate("mistral"),),
        tensor_parallel=True,
    ),
    "mistral4": Architecture(
        model="deepseek2:DeepSeek2", converters=("latent",), templates=(DefaultTemplate("mistral"),)
    ),
    "mllama": Architecture(
        model="mllama:Mllama",
        tower="mllama:MllamaVision",
        converters=("llama4",),
        rows="paired",
        pre="dbrx",
        add_bos=True,
    ),
    "modern-bert": Architecture(model="modern_bert:ModernBert", converters=("bert",)),
    "muse-glimmer": Architecture(
        model="muse_glimmer:MuseGlimmer",
        converters=("small_lineages",),
        rows="paired",
        pre="llama4",
        templates=(DefaultTemplate("glimmer"),),
    ),
    "mpt": Architecture(model="mpt:Mpt", converters=("gpt",)),
    "nemotron": Architecture(model="nemotron:Nemotron", converters=("small_lineages",), rows="published"),
    "nemotron_h": Architecture(
        model="nemotron_h:NemotronH",
        converters=("hybrids",),
        pre="qwen2",
        add_bos=False,
        templates=(DefaultTemplate("nemotron2", token="<SPECIAL_11>"),),
    ),
    "nemotron_h_moe": Architecture(
        model="nemotron_h:NemotronH",
        converters=("hybrids",),
        pre="qwen2",
        add_bos=False,
        templates=(DefaultTemplate("nemotron3"),),
    ),
    "nemotron_h_omni": Architecture(pre="qwen2", add_bos=False),
    "nomic-bert": Architecture(model="nomic_bert:NomicBert", converters=("bert",), add_bos=True),
    "nomic-bert-moe": Architecture(
        model="nomic_bert_moe:NomicBertMoe", converters=("bert",), add_bos=True, strips_before_mask=True
    ),
    "olmo2": Architecture(
        model="olmo2:Olmo2",
        converters=("small_lineages",),
        rows="published",
        templates=(DefaultTemplate("olmo2"),),
    ),
    "olmo3": Architecture(
        model="olmo2:Olmo2",
        rows="published",
        pre="dbrx",
        add_bos=False,
        templates=(DefaultTemplate("olmo3"),),
    ),
    "olmoe": Architecture(
        model="olmoe:Olmoe",
        converters=("small_lineages",),
        rows="published",
        templates=(DefaultTemplate("olmo2"),),
    ),
    "openelm": Architecture(model="openelm:OpenElm", converters=("remote_code",)),
    "orion": Architecture(model="stablelm:StableLm", converters=("aliases",), rows="published"),
    "paddleocr": Architecture(
        model="paddleocr:PaddleOcr",
        projectors=("paddleocr",),
        converters=("small_lineages",),
        rows="published",
        templates=(DefaultTemplate("ernie"),),
    ),
    "phi2": Architecture(model="phi2:Phi2", converters=("small_lineages",)),
    "phi3": Architecture(
        model="phi3:Phi3",
        converters=("llama",),
        rows="published",
        templates=(
            DefaultTemplate("phi3", end="<|end|>"),
            DefaultTemplate("phi4", end="<|im_end|>", token="<|im_sep|>"),
        ),
    ),
    "plamo3": Architecture(model="plamo3:Plamo3", converters=("plamo",)),
    "qwen2": Architecture(
        has_70b=True,
        model="qwen2:Qwen2",
        projectors=("dots_ocr", "internvl", "llava-next", "qwen2a", "resampler"),
        converters=("qwen", "minicpm"),
        rows="published",
        pre="qwen2",
        add_bos=True,
        templates=(DefaultTemplate("qwen2", end="<|im_end|>"),),
        tensor_parallel=True,
    ),
    "qwen25vl": Architecture(
        model="qwen2vl:Qwen2VL",
        tower="qwen:Qwen25Vision",
        pre="qwen2",
        add_bos=False,
        templates=(DefaultTemplate("qwen2", end="<|im_end|>"),),
    ),
    "qwen2moe": Architecture(
        model="qwen2moe:Qwen2Moe",
        converters=("qwen",),
        rows="published",
        templates=(DefaultTemplate("qwen2", end="<|im_end|>"),),
    ),
    "qwen2vl": Architecture(
        model="qwen2vl:Qwen2VL",
        projectors=("qwen2.5o", "qwen2.5vl_merger", "qwen2vl_merger"),
        converters=("qwen",),
        rows="published",
        templates=(DefaultTemplate("qwen2", end="<|im_end|>"),),
    ),
    "qwen3": Architecture(
        model="qwen3:Qwen3",
        projectors=("internvl", "lightonocr", "qwen3a", "resampler", "ultravox"),
        converters=("qwen", "minicpm"),
        rows="published",
        pre="qwen2",
        add_bos=True,
        templates=(DefaultTemplate("qwen3", end="<|im_end|>"),),
        tensor_parallel=True,
    ),
    "qwen35": Architecture(
        model="qwen3next:Qwen3Next",
        tower="qwen:Qwen3Vision",
        projectors=("minicpmv4_6", "qwen3vl_merger"),
        converters=("delta",),
        pre="qwen35",
        add_bos=False,
        templates=(DefaultTemplate("qwen3.5"),),
    ),
    "qwen35moe": Architecture(
        model="qwen3next:Qwen3Next",
        tower="qwen:Qwen3Vision",
        projectors=("qwen3vl_merger",),
        converters=("delta",),
        pre="qwen35",
        add_bos=False,
        templates=(DefaultTemplate("qwen3.5"),),
    ),
    "qwen3moe": Architecture(
        model="qwen3:Qwen3",
        projectors=("internvl",),
        converters=("qwen",),
        rows="published",
        pre="qwen2",
        add_bos=True,
        templates=(DefaultTemplate("qwen3", end="<|im_end|>"),),
    ),
    "qwen3next": Architecture(
        model="qwen3next:Qwen3Next",
        converters=("delta",),
        rows="published",
        pre="qwen2",
        add_bos=False,
        templates=(DefaultTemplate("qwen3"),),
    ),
    "qwen3vl": Architecture(
        model="qwen3vl:Qwen3VL",
        tower="qwen:Qwen3Vision",
        projectors=("qwen3a", "qwen3vl_merger"),
        converters=("qwen",),
        rows="published",
        pre="qwen2",
        add_bos=False,
        templates=(DefaultTemplate("qwen3"),),
    ),
    "qwen3vlmoe": Architecture(
        model="qwen3vl:Qwen3VL",
        tower="qwen:Qwen3Vision",
        projectors=("qwen3omni", "qwen3vl_merger"),
        converters=("qwen",),
        rows="published",
        pre="qwen2",
        add_bos=False,
        templates=(DefaultTemplate("qwen3"),),
    ),
    "qwen4exp": Architecture(
        model="qwen4exp:Qwen4Exp",
        projectors=("qwen3vl_merger",),
        converters=("delta",),
        pre="qwen35",
        add_bos=False,
    ),
    "refact": Architecture(model="refact:Refact", converters=("remote_code",)),
    "rwkv6": Architecture(model="rwkv6:Rwkv6", converters=("rwkv",), templates=(DefaultTemplate("rwkv"),)),
    "rwkv6qwen2": Architecture(
        model="rwkv6:QwenRwkv6",
        converters=("rwkv",),
        pre="qwen2",
        templates=(DefaultTemplate("qwen2", end="<|im_end|>"),),
    ),
    "rwkv7": Architecture(model="rwkv7:Rwkv7", converters=("rwkv",), templates=(DefaultTemplate("rwkv"),)),
    "seed_oss": Architecture(
        model="seed_oss:SeedOss",
        converters=("llama",),
        rows="published",
        templates=(DefaultTemplate("seed"),),
    ),
    "smallthinker": Architecture(
        model="smallthinker:SmallThinker",
        converters=("mixtures",),
        rows="published",
        pre="qwen2",
        templates=(DefaultTemplate("chatml", end="<|im_end|>"),),
    ),
    "smollm3": Architecture(
        model="smollm3:SmolLM3", converters=("llama",), rows="paired", templates=(DefaultTemplate("smollm3"),)
    ),
    "stablelm": Architecture(model="stablelm:StableLm", converters=("small_lineages",), rows="published"),
    "starcoder": Architecture(model="gpt2:StarCoder", converters=("gpt",)),
    "starcoder2": Architecture(
        model="starcoder2:Starcoder2", converters=("small_lineages",), rows="published"
    ),
    "step35": Architecture(
        model="step35:Step35",
        projectors=("step3vl",),
        converters=("step",),
        rows="published",
        templates=(DefaultTemplate("step3.5", end="<|im_end|>"),),
    ),
    "t5": Architecture(model="t5:T5", converters=("t5",), rows="published"),
    "t5encoder": Architecture(model="t5encoder:T5Encoder", converters=("t5",), rows="published"),
    "whisper": Architecture(
        model="whisper:Whisper", converters=("whisper",), add_bos=False, transcribes=True
    ),
    "xverse": Architecture(model="llama:Llama", converters=("aliases",), rows="paired"),
}
