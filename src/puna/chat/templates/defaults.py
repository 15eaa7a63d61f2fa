"""Chat templates for models without one, by the name of Ollama's renderer or by the model's architecture.

The templates are in the folder `builtin`, one for each way of writing conversations.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

from puna.architectures import ARCHITECTURES, UNKNOWN, DefaultTemplate
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


_CHATML: Final = DefaultTemplate("chatml", "<|im_end|>")
_DEEPSEEK: Final = DefaultTemplate("deepseek", "<｜end▁of▁sentence｜>", "<｜User｜>")
_GEMMA: Final = DefaultTemplate("gemma", "<end_of_turn>")
_LLAMA: Final = (
    DefaultTemplate("llama3.1", "<|eot_id|>", "<|python_tag|>"),
    DefaultTemplate("llama3", "<|eot_id|>"),
)

#: For most architectures: a model with this end of turn was trained on conversations of that form.
_BY_END: Final = (_CHATML, *_LLAMA, _GEMMA, _DEEPSEEK, DefaultTemplate("mistral", "</s>", "[SYSTEM_PROMPT]"))

#: Tokens that tell models of one architecture apart.
TELLING_TOKENS: Final = frozenset(
    one.token
    for group in (*(record.templates for record in ARCHITECTURES.values()), _BY_END)
    for one in group
    if one.token
)

#: A template that llama.cpp has built in, which files name instead of containing one.
WORLD_NAME: Final = "rwkv-world"


def default_template(architecture: str, ends: Collection[str], tokens: Collection[str] = ()) -> str:
    """Return the Jinja template for an architecture; empty for base models and unknown ones.

    `ends` are the tokens that end the model's answers, and `tokens` the `TELLING_TOKENS` in its vocabulary.
    """
    record = ARCHITECTURES.get(architecture, UNKNOWN)
    for one in (*record.templates, *(_BY_END if record.told_by_end else ())):
        if (not one.end or one.end in ends) and (not one.token or one.token in tokens):
            return _text(one.name)
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
