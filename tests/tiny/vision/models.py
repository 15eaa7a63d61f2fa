"""Tiny random vision models of every architecture, as GGUF files and as their Hugging Face originals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.tiny.gemma3 import TinyGemma3
from tests.tiny.lfm2 import TinyLfm2
from tests.tiny.llama import TinyLlama
from tests.tiny.llama4 import TinyLlama4
from tests.tiny.mllama import TinyMllama
from tests.tiny.vision.deepseek_ocr import TinyDeepSeekOcr
from tests.tiny.vision.deepseek_ocr2 import TinyDeepSeekOcr2
from tests.tiny.vision.dots_ocr import TinyDotsOcr
from tests.tiny.vision.gemma3 import TinyGemma3Vision
from tests.tiny.vision.gemma3n import TinyGemma3nVision
from tests.tiny.vision.gemma4 import TinyGemma4Vision
from tests.tiny.vision.gemma4_unified import TinyGemma4UnifiedVision
from tests.tiny.vision.glm4v import TinyGlm4v, TinyGlm4vMoe
from tests.tiny.vision.glm_ocr import TinyGlmOcr
from tests.tiny.vision.idefics3 import TinyIdefics3
from tests.tiny.vision.internvl import TinyInternVL
from tests.tiny.vision.kimi_k25 import TinyKimiK25
from tests.tiny.vision.lfm2 import TinyLfm2Vision
from tests.tiny.vision.lighton import TinyLightOn
from tests.tiny.vision.llama4 import TinyLlama4Vision
from tests.tiny.vision.llava import TinyLlava
from tests.tiny.vision.llava_next import TinyLlavaNext
from tests.tiny.vision.minicpmv import TinyMiniCPMV
from tests.tiny.vision.minicpmv46 import TinyMiniCPMV46
from tests.tiny.vision.minimax_m3 import TinyMiniMaxM3
from tests.tiny.vision.mistral3 import TinyMistral3
from tests.tiny.vision.mllama import TinyMllamaVision
from tests.tiny.vision.paddleocr import TinyPaddleOcr
from tests.tiny.vision.qwen2vl import TinyQwen2VL
from tests.tiny.vision.qwen3vl import QWEN3_VL_MOE, TinyQwen3VL, TinyQwen4Vision, TinyQwen35Vision
from tests.tiny.vision.qwen25vl import TinyQwen25VL
from tests.tiny.vision.step3 import TinyStep3

#: Configs of tiny vision models, by name.
VISION_MODELS: dict[str, Callable[[], Any]] = {
    "deepseek-ocr": lambda: TinyDeepSeekOcr(TinyLlama()),
    "deepseek-ocr 2": lambda: TinyDeepSeekOcr2(TinyLlama()),
    "dots.ocr": lambda: TinyDotsOcr(TinyLlama(rope_base=1e6)),
    "gemma3": lambda: TinyGemma3Vision(TinyGemma3(pattern=2, window=32, tied=False)),
    "gemma3n": lambda: TinyGemma3nVision(TinyLlama()),
    "gemma4": lambda: TinyGemma4Vision(TinyLlama(), large=True),
    "gemma4, small": lambda: TinyGemma4Vision(TinyLlama()),
    "gemma4 12b": lambda: TinyGemma4UnifiedVision(TinyLlama()),
    "glm4v": lambda: TinyGlm4v(TinyLlama()),
    "glm4v, experts": lambda: TinyGlm4vMoe(TinyLlama()),
    "glmocr": lambda: TinyGlmOcr(TinyLlama()),
    "idefics3": lambda: TinyIdefics3(TinyLlama()),
    "internvl": lambda: TinyInternVL(TinyLlama()),
    "internvl-6b": lambda: TinyInternVL(TinyLlama(), large=True),
    "kimi k2.5": lambda: TinyKimiK25(TinyLlama()),
    "lfm2": lambda: TinyLfm2Vision(TinyLfm2()),
    "lighton": lambda: TinyLightOn(TinyLlama(rope_base=1e6)),
    "llama4": lambda: TinyLlama4Vision(TinyLlama4(chunk=64)),
    "llava": lambda: TinyLlava(TinyLlama()),
    "llava-next": lambda: TinyLlavaNext(TinyLlama()),
    "minicpmv": lambda: TinyMiniCPMV(TinyLlama(hidden=256)),
    "minicpmv 4.6": lambda: TinyMiniCPMV46(TinyLlama(rope_base=1e6)),
    "minimax m3": lambda: TinyMiniMaxM3(TinyLlama()),
    "mistral3": lambda: TinyMistral3(TinyLlama(rope_base=1e6)),
    "mllama": lambda: TinyMllamaVision(TinyMllama()),
    "paddleocr": lambda: TinyPaddleOcr(TinyLlama(rope_base=500000.0)),
    "qwen25vl": lambda: TinyQwen25VL(TinyLlama(rope_base=1e6)),
    "qwen2vl": lambda: TinyQwen2VL(TinyLlama(rope_base=1e6)),
    "qwen35": lambda: TinyQwen35Vision(TinyLlama(rope_base=1e6)),
    "qwen3vl": lambda: TinyQwen3VL(TinyLlama(rope_base=1e6)),
    "qwen4exp": lambda: TinyQwen4Vision(TinyLlama(rope_base=1e6)),
    "qwen3vlmoe": lambda: TinyQwen3VL(TinyLlama(rope_base=1e6), decoder=QWEN3_VL_MOE),
    "step 3.7": lambda: TinyStep3(TinyLlama()),
}
