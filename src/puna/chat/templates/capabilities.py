"""What a model can do, as its file and its template's text say; the template is not run for it."""

from __future__ import annotations

from collections.abc import Collection

from puna.chat.answers.family import AnswerFamily
from puna.chat.answers.registry import PARSERS, family_by
from puna.chat.templates.choose import chat_template, traits
from puna.chat.templates.format import Traits
from puna.chat.templates.model_facts import ModelFacts
from puna.errors import RequestError


def capabilities(
    facts: ModelFacts | None,
    template: str = "",
    *,
    extra: Collection[str] = (),
    sees: bool = False,
    parser: str = "",
) -> tuple[str, ...]:
    """As far as they apply: embedding, rerank or completion, vision, audio, tools, insert, thinking.

    They come in this order. `facts` are None when the model's file cannot be read; `extra` are more that its
    author claims, who may also name the `parser` of its answers.
    """
    form = traits(chat_template(facts or ModelFacts(), template))
    named, family = PARSERS.get(parser), _family(facts, form, parser)
    found = {
        "embedding": facts is not None and facts.embeds and not facts.ranks,
        "rerank": facts is not None and facts.ranks,
        "completion": facts is not None and not facts.embeds,
        "vision": sees or (facts is not None and facts.sees),
        "audio": facts is not None and facts.hears,
        **dict.fromkeys(extra, True),
        "tools": facts is not None
        and not facts.embeds
        and (
            ((form.takes_tools or "tools" in extra) and family.calls is not None)
            or (named is not None and named.calls)
        ),
        "insert": form.takes_suffix,
        "thinking": family.thinking is not None
        or form.thinking_tags is not None
        or (named is not None and named.thinking is not None)
        or "thinking" in extra,
    }
    return tuple(name for name, there in found.items() if there)


def check_capabilities(name: str, has: Collection[str], wanted: Collection[str]) -> None:
    """Raises RequestError naming each capability of `wanted` that the model lacks."""
    missing = [capability for capability in wanted if capability not in has]
    if missing:
        raise RequestError("\n".join(f'"{name}" does not support {one}' for one in missing))


def answer_family(facts: ModelFacts | None, template: str = "", parser: str = "") -> str:
    """The name of the family whose markup the model's answers have. Raises TemplateError."""
    return _family(facts, traits(chat_template(facts or ModelFacts(), template)), parser).name


def _family(facts: ModelFacts | None, form: Traits, parser: str) -> AnswerFamily:
    return family_by(parser, form.family, facts.architecture if facts else "", form.call_tags)
