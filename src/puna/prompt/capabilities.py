"""What a model can do, as its file and its template's text say; the template is not run for it."""

from __future__ import annotations

from collections.abc import Collection

from puna.errors import RequestError
from puna.prompt.choose import chat_template, traits
from puna.prompt.model_facts import ModelFacts

#: Architectures that think in a channel of their own instead of between tags.
_CHANNEL_THINKERS = ("gptoss", "gpt-oss")


#: What no model can do in this version.
_NOT_YET = {"tools": "tools: this version of Puna does not understand a model's tool calls yet"}


def capabilities(
    facts: ModelFacts | None, template: str = "", *, extra: Collection[str] = (), sees: bool = False
) -> tuple[str, ...]:
    """As far as they apply: embedding, rerank or completion, vision, audio, insert, thinking; in this order.

    Never tools: a template may have a place for them, but calls in an answer are not understood yet.
    `facts` are None when the model's file cannot be read; `extra` are more that its author claims.
    """
    form = traits(chat_template(facts or ModelFacts(), template))
    found = {
        "embedding": facts is not None and facts.embeds and not facts.ranks,
        "rerank": facts is not None and facts.ranks,
        "completion": facts is not None and not facts.embeds,
        "vision": sees or (facts is not None and facts.sees),
        "audio": facts is not None and facts.hears,
        **dict.fromkeys(extra, True),
        "tools": False,
        "insert": form.takes_suffix,
        "thinking": (facts is not None and facts.architecture in _CHANNEL_THINKERS)
        or form.thinking_tags is not None
        or "thinking" in extra,
    }
    return tuple(name for name, there in found.items() if there)


def check_capabilities(name: str, has: Collection[str], wanted: Collection[str]) -> None:
    """Raises RequestError naming each capability of `wanted` that the model lacks."""
    missing = [capability for capability in wanted if capability not in has]
    if missing:
        raise RequestError(
            "\n".join(f'"{name}" does not support {_NOT_YET.get(one, one)}' for one in missing)
        )
