"""The choice of a model's chat template, and the abilities that follow from it."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import msgspec

from puna.chat.answers.registry import PARSERS, family_by
from puna.chat.templates.defaults import WORLD_NAME, default_template
from puna.chat.templates.go import GoTemplate
from puna.chat.templates.go_chat import PASS_THROUGH, GoFormat
from puna.chat.templates.messages import ChatFormat, SpecialTokens, Traits
from puna.errors import RequestError, TemplateError

if TYPE_CHECKING:  # renderers need no code that reads files
    from puna.chat.templates.model_facts import ModelFacts

#: Templates whose traits are remembered; a stored model has one.
_REMEMBERED: Final = 1024


class ChatTemplate(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A template and everything else that makes a chat format."""

    text: str
    is_go: bool
    with_tools: str | None = None  # used instead whenever there are tools
    tokens: SpecialTokens = SpecialTokens()

    @cached_property
    def digest(self) -> bytes:
        """Identity of the template, in 16 bytes."""
        return hashlib.blake2b(msgspec.msgpack.encode(self), digest_size=16).digest()

    def format(self) -> ChatFormat:
        """Parse the template, which takes up to a second for the longest. Raises TemplateError."""
        if self.is_go:
            return GoFormat(self.text)
        # Slow to import, and not needed for every model.
        from puna.chat.templates.jinja_chat import JinjaFormat

        return JinjaFormat(self.text, self.tokens, with_tools=self.with_tools)


def chat_template(facts: ModelFacts, template: str = "") -> ChatTemplate:
    """Return the chat template of the model with these facts.

    It is the first available of: `template`, the file's own Jinja template, the default for such models
    (`puna.chat.templates.defaults`), and `{{ .Prompt }}`.
    """
    text = template or own_template(facts)
    if not text:
        text = default_template(facts.architecture, facts.ends, facts.telling_tokens) or PASS_THROUGH
    if (template and not is_jinja(template)) or text is PASS_THROUGH:
        return ChatTemplate(text=text, is_go=True)
    with_tools = None if template else facts.tool_template
    return ChatTemplate(text=text, is_go=False, with_tools=with_tools, tokens=facts.tokens)


def own_template(facts: ModelFacts) -> str:
    """Return the Jinja template in the file; empty if it has none."""
    return "" if facts.chat_template in (None, WORLD_NAME) else facts.chat_template or ""


def chat_format(facts: ModelFacts, template: str = "") -> ChatFormat:
    """Return the format of `chat_template`, which renders here, without limits. Raises TemplateError."""
    return chat_template(facts, template).format()


class _Remembered:
    """Results of parsing the most recent templates: traits, or error messages."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: OrderedDict[bytes, Traits | str] = OrderedDict()

    def get(self, digest: bytes) -> Traits | str | None:
        with self._lock:
            if digest in self._found:
                self._found.move_to_end(digest)
            return self._found.get(digest)

    def put(self, digest: bytes, found: Traits | str) -> None:
        with self._lock:
            self._found[digest] = found
            if len(self._found) > _REMEMBERED:
                self._found.popitem(last=False)


_remembered = _Remembered()


def is_parsed(template: ChatTemplate) -> bool:
    """Return whether `traits` knows the template without parsing it."""
    return _remembered.get(template.digest) is not None


def traits(template: ChatTemplate) -> Traits:
    """Return a template's traits, parsing it unless that was done recently. Raises TemplateError."""
    digest = template.digest
    found = _remembered.get(digest)
    if found is None:
        try:
            found = template.format().traits
        except TemplateError as error:
            found = str(error)
        _remembered.put(digest, found)
    if isinstance(found, str):
        raise TemplateError(found)
    return found


def check_template(text: str) -> None:
    """Raise TemplateError unless `text` is a template of one of the two languages."""
    if is_jinja(text):
        from puna.chat.templates.jinja import JinjaTemplate

        JinjaTemplate(text)
    else:
        GoTemplate(text)


def is_jinja(text: str) -> bool:
    """Return whether a template is Jinja, the only one of the two languages with `{% %}`."""
    return "{%" in text


@dataclass(frozen=True)
class Abilities:
    """Abilities of a model, derived from its file and the text of its template, which is not run."""

    #: A subset, in this order, of: embedding, rerank, transcription, completion,
    #: vision, audio, tools, insert, thinking.
    capabilities: tuple[str, ...] = ()
    family: str = ""  # name of the family whose markup the answers have
    takes_documents: bool = False  # whether the template has a place for them
    takes_values: bool = False  # whether the template may have variables of its own


def abilities(
    facts: ModelFacts | None,
    template: ChatTemplate | None = None,
    *,
    extra: Collection[str] = (),
    towers: ModelFacts | None = None,
    parser: str = "",
) -> Abilities:
    """Return the abilities of a model with `template`, by default that of its file. Raises TemplateError.

    `facts` are None when the model's file cannot be read; `towers` are those of the file with its separate
    towers, if any. `extra` are further capabilities that the author claims, and `parser` is the author's name
    for how answers are read.
    """
    form = traits(template or chat_template(facts or ModelFacts()))
    named = PARSERS.get(parser)
    family = family_by(parser, form.family, facts.architecture if facts else "", form.call_tags)
    beside = facts.senses_by(towers) if facts is not None and towers is not None else ()
    found = {
        "embedding": facts is not None and facts.embeds and not facts.ranks,
        "rerank": facts is not None and facts.ranks,
        "transcription": facts is not None and facts.transcribes,
        "completion": facts is not None and not facts.embeds and not facts.transcribes,
        "vision": facts is not None and (facts.sees or "vision" in beside),
        "audio": facts is not None and (facts.hears or "audio" in beside),
        **dict.fromkeys(extra, True),
        "tools": facts is not None
        and not facts.embeds
        and not facts.transcribes
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
    return Abilities(
        tuple(name for name, there in found.items() if there),
        family.name,
        form.takes_documents,
        form.takes_values,
    )


def check_capabilities(name: str, has: Collection[str], wanted: Collection[str]) -> None:
    """Raise RequestError naming each capability of `wanted` that the model lacks."""
    missing = [capability for capability in wanted if capability not in has]
    if missing:
        raise RequestError("\n".join(f'"{name}" does not support {one}' for one in missing))
