"""Which chat format a model has, and what it can do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from puna.gguf import GGUFFile
from puna.prompt.format import ChatFormat
from puna.prompt.go import GoTemplate
from puna.prompt.go_chat import PASS_THROUGH, GoFormat
from puna.prompt.jinja import compiled
from puna.prompt.jinja_chat import JinjaFormat
from puna.prompt.model_facts import ModelFacts, facts_at, read_facts
from puna.prompt.stops import stop_strings


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


def chat_format(model: StoredTemplate | GGUFFile, template_override: str | None = None) -> ChatFormat:
    """The chat format of a model.

    The first there is of: `template_override`, the store's template layer, the file's own Jinja
    template, and `{{ .Prompt }}`. Raises TemplateError if it does not parse, StoreError if it
    cannot be read. A model file that is missing or damaged only means fewer capabilities.
    """
    if isinstance(model, GGUFFile):
        facts: ModelFacts | None = read_facts(model)
        layer: str | None = None
        extra: tuple[str, ...] = ()
        sees = False
    else:
        facts = facts_at(model.model_path) if model.model_path else None
        layer, extra = model.template, model.config.capabilities or ()
        sees = bool(model.projector_paths)
    known = facts or ModelFacts()
    text = template_override or layer
    form = _format(text, known)
    form.stop = () if text and not is_jinja(text) else stop_strings(form.template)
    form.capabilities = _capabilities(form, facts, extra, sees)
    return form


def check_template(text: str) -> None:
    """Raises TemplateError if `text` is no template of either language."""
    if is_jinja(text):
        compiled(text)
    else:
        GoTemplate.cached(text)


def is_jinja(text: str) -> bool:
    """Whether a template is Jinja: only there are statements written `{% %}`."""
    return "{%" in text


def _format(text: str | None, facts: ModelFacts) -> GoFormat | JinjaFormat:
    if text and not is_jinja(text):
        return GoFormat(text)
    if text:
        return JinjaFormat(text, facts.tokens)
    if facts.chat_template:
        return JinjaFormat(facts.chat_template, facts.tokens, with_tools=facts.tool_template)
    return GoFormat(PASS_THROUGH)


def _capabilities(
    form: GoFormat | JinjaFormat, facts: ModelFacts | None, extra: Sequence[str], sees: bool
) -> tuple[str, ...]:
    channels = facts is not None and facts.architecture in _CHANNEL_THINKERS
    tools = form.takes_tools if isinstance(form, JinjaFormat) else "tools" in form.identifiers
    found = {
        "embedding": facts is not None and facts.embeds,
        "completion": facts is not None and not facts.embeds,
        "vision": sees or (facts is not None and facts.sees),
        "audio": facts is not None and facts.hears,
        **dict.fromkeys(extra, True),
        "tools": tools or "tools" in extra,
        "insert": isinstance(form, GoFormat) and "suffix" in form.identifiers,
        "thinking": channels or form.thinking_tags is not None or "thinking" in extra,
    }
    return tuple(name for name, there in found.items() if there)
