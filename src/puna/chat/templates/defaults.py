"""Chat templates for models without one, by the name of Ollama's renderer or by the model's architecture.

The templates are in the folder `builtin`, one for each way of writing conversations.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

from puna.errors import RequestError, shown


@dataclass(frozen=True)
class _Renderer:
    """A template, and a prefix of settings for variants that differ little."""

    template: str
    before: str = ""


#: Values of `RENDERER` in a Modelfile, as Ollama names them.
RENDERERS: Final = {
    "cogito": _Renderer("cogito"),
    "cohere": _Renderer("command-a"),
    "deepseek3.1": _Renderer("deepseek3.1"),
    "functiongemma": _Renderer("functiongemma"),
    "gemma4": _Renderer("gemma4"),
    "gemma4-large": _Renderer("gemma4"),
    "gemma4-small": _Renderer("gemma4", "{% set small = true %}"),
    "glimmer": _Renderer("glimmer"),
    "glm-4.7": _Renderer("glm4.7"),
    "glm-ocr": _Renderer("glm4.5"),
    "laguna": _Renderer("laguna"),
    "lfm2": _Renderer("lfm2"),
    "lfm2-thinking": _Renderer("lfm2"),
    "nemotron-3-nano": _Renderer("nemotron3"),
    "nemotron-3.5-nano": _Renderer("nemotron3"),
    "olmo3": _Renderer("olmo3"),
    "olmo3-32b-think": _Renderer("olmo3-think", "{% set identity = 'You are a helpful AI assistant.' %}"),
    "olmo3-think": _Renderer("olmo3-think"),
    "olmo3.1": _Renderer(
        "olmo3",
        "{% set identity = 'You are Olmo, a helpful AI assistant built by Ai2. Your date cutoff is December "
        "2024, and your model weights are available at https://huggingface.co/allenai.' %}",
    ),
    "ornith": _Renderer("qwen3.5"),
    "poolside-v1": _Renderer("laguna-v8"),
    "qwen3-coder": _Renderer("qwen3-coder"),
    "qwen3-vl-instruct": _Renderer("qwen3"),
    "qwen3-vl-thinking": _Renderer("qwen3", "{% set opened = true %}"),
    "qwen3.5": _Renderer("qwen3.5"),
    "qwen3.8": _Renderer("qwen3.5"),
}


@dataclass(frozen=True)
class _Default:
    """The template of models whose answers end in `end` and whose vocabulary has `token`, if given."""

    template: str
    end: str = ""
    token: str = ""


_CHATML: Final = _Default("chatml", "<|im_end|>")
_DEEPSEEK: Final = _Default("deepseek", "<｜end▁of▁sentence｜>", "<｜User｜>")
_GEMMA: Final = _Default("gemma", "<end_of_turn>")
_LLAMA: Final = (_Default("llama3.1", "<|eot_id|>", "<|python_tag|>"), _Default("llama3", "<|eot_id|>"))

#: The first match counts. Architectures with mostly base models are absent.
_BY_ARCHITECTURE: Final = {
    "cohere2": (_Default("command-a", token="<|START_TEXT|>"), _Default("command-r")),
    "command-r": (_Default("command-r"),),
    "deepseek2": (
        _Default("kimi", token="<|im_middle|>"),
        _Default("deepseek3.1", token="<｜search▁begin｜>"),
        _DEEPSEEK,
        _Default("deepseek2"),
    ),
    "ernie4_5": (_Default("ernie"),),
    "ernie4_5-moe": (_Default("ernie"),),
    "exaone4": (_Default("exaone4"),),
    "gemma4": (_Default("gemma4"),),
    "glm4": (_Default("glm4"),),
    "glm4moe": (_Default("glm4.5"),),
    "glm4moelite": (_Default("glm4.7"),),
    "glmocr": (_Default("glm4.5"),),
    "gpt-oss": (_Default("gpt-oss"),),
    "gptoss": (_Default("gpt-oss"),),
    "granite": (_Default("granite3"),),
    "granitehybrid": (_Default("granite"),),
    "granitemoe": (_Default("granite3"),),
    "hunyuan-dense": (_Default("hunyuan"),),
    "kimi-linear": (_Default("kimi"),),
    "lfm2": (_Default("lfm2"),),
    "lfm2moe": (_Default("lfm2"),),
    "llama4": (_Default("llama4"),),
    "minimax-m2": (_Default("minimax"),),
    "mistral3": (_Default("mistral"),),
    "mistral4": (_Default("mistral"),),
    "nemotron_h": (_Default("nemotron2", token="<SPECIAL_11>"),),
    "nemotron_h_moe": (_Default("nemotron3"),),
    "olmo2": (_Default("olmo2"),),
    "olmo3": (_Default("olmo3"),),
    "olmoe": (_Default("olmo2"),),
    "phi3": (_Default("phi3", "<|end|>"), _Default("phi4", "<|im_end|>", "<|im_sep|>")),
    "qwen2": (_Default("qwen2", "<|im_end|>"),),
    "qwen25vl": (_Default("qwen2", "<|im_end|>"),),
    "qwen2moe": (_Default("qwen2", "<|im_end|>"),),
    "qwen2vl": (_Default("qwen2", "<|im_end|>"),),
    "qwen3": (_Default("qwen3", "<|im_end|>"),),
    "qwen35": (_Default("qwen3.5"),),
    "qwen35moe": (_Default("qwen3.5"),),
    "qwen3moe": (_Default("qwen3", "<|im_end|>"),),
    "qwen3next": (_Default("qwen3"),),
    "qwen3vl": (_Default("qwen3"),),
    "qwen3vlmoe": (_Default("qwen3"),),
    "rwkv7": (_Default("rwkv"),),
    "seed_oss": (_Default("seed"),),
    "smollm3": (_Default("smollm3"),),
}

#: For any architecture: a model with this end of turn was trained on conversations of that form.
_BY_END: Final = (_CHATML, *_LLAMA, _GEMMA, _DEEPSEEK, _Default("mistral", "</s>", "[SYSTEM_PROMPT]"))

#: Tokens that tell models of one architecture apart.
TELLING_TOKENS: Final = frozenset(
    one.token for group in (*_BY_ARCHITECTURE.values(), _BY_END) for one in group if one.token
)

#: A template that llama.cpp has built in, which files name instead of containing one.
WORLD_NAME: Final = "rwkv-world"


def default_template(architecture: str, ends: Collection[str], tokens: Collection[str] = ()) -> str:
    """Return the Jinja template for an architecture; empty for base models and unknown ones.

    `ends` are the tokens that end the model's answers, and `tokens` the `TELLING_TOKENS` in its vocabulary.
    """
    for one in (*_BY_ARCHITECTURE.get(architecture, ()), *_BY_END):
        if (not one.end or one.end in ends) and (not one.token or one.token in tokens):
            return _text(one.template)
    return ""


def rendered_by(renderer: str) -> str:
    """Return the Jinja template of a renderer. Raises RequestError if it is unknown."""
    check_renderer(renderer)
    found = RENDERERS[renderer]
    return found.before + _text(found.template)


def check_renderer(renderer: str) -> None:
    """Raise RequestError if `renderer` is unknown."""
    if renderer not in RENDERERS:
        raise RequestError(
            f"unknown renderer {shown(renderer)}: this version knows {', '.join(sorted(RENDERERS))}; "
            "use one of these, or give the model a TEMPLATE"
        )


@cache
def _text(name: str) -> str:
    return (resources.files("puna.chat.templates") / "builtin" / f"{name}.jinja").read_text(encoding="utf-8")
