"""What a model can do, as its file and its template's text say; the template is not run for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

from puna.errors import RequestError
from puna.prompt.choose import chat_format
from puna.prompt.format import Think
from puna.prompt.model_facts import ModelFacts, facts_at


class _Config(Protocol):
    @property
    def capabilities(self) -> tuple[str, ...] | None: ...


class StoredTemplate(Protocol):
    """What is asked of a model of the store (`puna.store.StoredModel` has it all)."""

    @property
    def template(self) -> str | None: ...
    @property
    def model_path(self) -> Path | None: ...
    @property
    def projector_paths(self) -> Sequence[Path]: ...
    @property
    def config(self) -> _Config: ...


#: Architectures that think in a channel of their own instead of between tags.
_CHANNEL_THINKERS = ("gptoss", "gpt-oss")


def stored_capabilities(model: StoredTemplate, template: str = "") -> tuple[str, ...]:
    """What a model of the store can do, with `template` instead of its own if that is given.

    Raises TemplateError if the template does not parse, StoreError if it cannot be read. A model file that is
    missing or damaged only means fewer capabilities.
    """
    return capabilities(
        facts_at(model.model_path) if model.model_path else None,
        template or model.template or "",
        extra=model.config.capabilities or (),
        sees=bool(model.projector_paths),
    )


def capabilities(
    facts: ModelFacts | None, template: str = "", *, extra: Collection[str] = (), sees: bool = False
) -> tuple[str, ...]:
    """As far as they apply: embedding or completion, vision, audio, tools, insert, thinking; in this order.

    `facts` are None when the model's file cannot be read; `extra` are more that its author claims.
    """
    form = chat_format(facts or ModelFacts(), template)
    found = {
        "embedding": facts is not None and facts.embeds,
        "completion": facts is not None and not facts.embeds,
        "vision": sees or (facts is not None and facts.sees),
        "audio": facts is not None and facts.hears,
        **dict.fromkeys(extra, True),
        "tools": form.takes_tools or "tools" in extra,
        "insert": form.takes_suffix,
        "thinking": (facts is not None and facts.architecture in _CHANNEL_THINKERS)
        or form.thinking_tags is not None
        or "thinking" in extra,
    }
    return tuple(name for name, there in found.items() if there)


def resolved_think(think: Think, has: Collection[str], name: str) -> Think:
    """What the template is told: a model that can think does so unless the request says not to.

    `has` are the capabilities of the model `name`. Raises RequestError if it is to think and cannot.
    """
    if "thinking" in has:
        return True if think is None else think
    if think:
        raise RequestError(f'"{name}" does not support thinking')
    return think
