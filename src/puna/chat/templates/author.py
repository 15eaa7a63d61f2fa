"""The additions of a model's author to its weights, and their effect on requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

import msgspec.structs

from puna.chat.templates.choose import (
    Abilities,
    ChatTemplate,
    abilities,
    chat_template,
    is_parsed,
    own_template,
)
from puna.chat.templates.defaults import rendered_by
from puna.chat.templates.go import GoTemplate
from puna.chat.templates.go.parser import Action, Field, Statement, Text
from puna.chat.templates.messages import Chat, Message, Think
from puna.chat.templates.model_facts import ModelFacts, facts_at, projector_for
from puna.errors import TemplateError


class _Config(Protocol):
    @property
    def capabilities(self) -> tuple[str, ...] | None: ...
    @property
    def parser(self) -> str: ...
    @property
    def renderer(self) -> str: ...


class AuthoredModel(Protocol):
    """The fields of a stored model that are needed here, all of which `puna.store.StoredModel` has."""

    @property
    def name(self) -> str: ...
    @property
    def template(self) -> str | None: ...
    @property
    def system(self) -> str | None: ...
    @property
    def params(self) -> Mapping[str, Any]: ...
    @property
    def messages(self) -> Sequence[Mapping[str, Any]]: ...
    @property
    def model_path(self) -> Path | None: ...
    @property
    def projector_paths(self) -> Sequence[Path]: ...
    @property
    def config(self) -> _Config: ...


@dataclass(frozen=True)
class Author:
    """The contents of a stored model's Modelfile; for a bare file, only its abilities."""

    name: str
    find_abilities: Callable[[], Abilities]
    template: str = ""  # empty: the file's own
    parser: str = ""  # Ollama's name for how answers are read; empty: the template decides
    system: str | None = None
    opening: Sequence[Mapping[str, Any]] = ()  # messages before every conversation
    options: Mapping[str, Any] = field(default_factory=dict)
    is_parsed: Callable[[], bool] = lambda: False  # whether finding the abilities is quick

    @classmethod
    def of(cls, model: AuthoredModel, template: str = "") -> Author:
        """Return the author of a stored model, with `template` instead of the model's own if given.

        A renderer takes precedence over a template of the store, and the file's own template over a renderer,
        which is someone else's version of it. Raises StoreError if a part of the model cannot be read, and
        RequestError for an unknown renderer.
        """

        @cache
        def facts() -> ModelFacts | None:
            return facts_at(model.model_path) if model.model_path else None

        renderer = model.config.renderer
        if not template and renderer:
            brought = own_template(facts() or ModelFacts())
            template = "" if brought else rendered_by(renderer)
        elif not template:
            template = model.template or ""

        @cache
        def chosen() -> ChatTemplate:
            return chat_template(facts() or ModelFacts(), template)

        def find() -> Abilities:
            path = model.model_path
            projector = projector_for(model.projector_paths, path) if path else None
            return abilities(
                facts(),
                chosen(),
                extra=model.config.capabilities or (),
                parser=model.config.parser,
                towers=None if projector is None else facts_at(projector),
            )

        return cls(
            model.name,
            find,
            template,
            model.config.parser,
            model.system,
            model.messages,
            model.params,
            lambda: is_parsed(chosen()),
        )

    @cached_property
    def abilities(self) -> Abilities:
        """The model's abilities, found when first needed because that parses the template.

        A model file that is missing or damaged only means fewer capabilities. Raises TemplateError if the
        template does not parse.
        """
        return self.find_abilities()

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The model's capabilities. Raises TemplateError as `abilities`."""
        return self.abilities.capabilities

    def framed(self, inputs: Sequence[str | list[int]]) -> list[str | list[int]]:
        """Return texts to embed with the instruction that the author's template puts around each.

        Tokens stay unchanged, as do the inputs of models that do not embed or whose template is for
        conversations. Raises TemplateError as `abilities`.
        """
        before, after = _frame(self.template)
        if not (before or after) or "embedding" not in self.capabilities:
            return list(inputs)
        return [f"{before}{text}{after}" if isinstance(text, str) else text for text in inputs]

    def answer_family(self) -> str:
        """Return the name of the family whose markup answers have. Raises TemplateError as `abilities`."""
        return self.abilities.family

    def takes_documents(self) -> bool:
        """Return whether the template has a place for documents. Raises TemplateError as `abilities`."""
        return self.abilities.takes_documents

    @property
    def can_think(self) -> bool:
        """Whether the model can think. Raises TemplateError as `abilities`."""
        return "thinking" in self.capabilities

    def takes_values(self) -> bool:
        """Return whether the template may have variables of its own. Raises TemplateError as `abilities`."""
        return self.abilities.takes_values

    def think(self, asked: Think) -> Think:
        """Return the template's setting for thinking, which is on by default for models that can think.

        For other models it is None.
        """
        if not self.can_think:
            return None
        if asked == "max" and self.answer_family() == "harmony":
            return "high"  # the highest level of that format
        return True if asked is None else asked

    def opened(self, chat: Chat, *, system: str = "", opening: bool = True) -> Chat:
        """Return `chat` after the author's system text (or `system`) and, with `opening`, opening messages.

        A chat that begins with its own system message gets no other.
        """
        text = system or self.system
        has_own = bool(chat.messages) and chat.messages[0].role == "system"
        first = [Message(role="system", content=text)] if text and not has_own else []
        examples = [
            Message(role=str(item.get("role", "")), content=str(item.get("content", "")))
            for item in (self.opening if opening else ())
        ]
        return msgspec.structs.replace(chat, messages=[*first, *examples, *chat.messages])


@lru_cache(maxsize=256)
def _frame(template: str) -> tuple[str, str]:
    """Return the texts that `template` puts before and after `{{ .Prompt }}`; empty for other templates.

    A template that does anything else is for conversations, which embedding models may have, too.
    """
    try:
        statements = GoTemplate(template).tree.root
    except TemplateError:
        return "", ""
    texts = [""]
    for statement in statements:
        if isinstance(statement, Text):
            texts[-1] += statement.text
        elif _is_prompt(statement):
            texts.append("")
        else:
            return "", ""
    return (texts[0], texts[1]) if len(texts) == 2 else ("", "")


def _is_prompt(statement: Statement) -> bool:
    if not isinstance(statement, Action) or statement.pipeline.variables:
        return False
    words = [word for command in statement.pipeline.commands for word in command.words]
    return len(words) == 1 and isinstance(words[0], Field) and words[0].names == ("Prompt",)
