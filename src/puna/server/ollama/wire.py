"""Request bodies of Ollama's API, with the defaults of keys that are absent or null.

Unknown keys are ignored, and the case of keys does not matter, as with the decoder of Ollama.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field, field_validator

from puna.chat.templates.messages import Chat, Insert
from puna.chat.templates.messages import Message as PromptMessage
from puna.grammar.format import Format, format_of
from puna.protocol import Prompt
from puna.server.http.bodies import Body, Files, Licences, Many, Messages, Name
from puna.server.jobs.images import from_base64
from puna.server.jobs.jobs import GenerationSpec
from puna.server.jobs.own_fields import ChatFields, OwnFields, ProgressField, only_one
from puna.server.jobs.tools import ToolUse, chat_choice, chat_tools


class OllamaMessage(Body):
    """A message of a chat. Roles are not checked; templates decide which ones they know."""

    role: str = ""
    content: str = ""
    thinking: str = ""
    images: Many[str] = Field(default_factory=list)
    tool_calls: Many[dict[str, Any]] = Field(default_factory=list)
    tool_name: str = ""
    tool_call_id: str = ""

    @field_validator("role")
    @classmethod
    def _lower(cls, value: str) -> str:
        return value.lower()


class GenerationBody(OwnFields, ProgressField):
    """The common fields of generate and chat."""

    model: Name = ""
    format: Any = None
    options: dict[str, Any] = Field(default_factory=dict)
    keep_alive: Any = None
    think: Any = None
    stream: bool = True
    truncate: bool = True
    shift: bool = True
    logprobs: bool = False
    top_logprobs: int = 0
    render_only: bool = Field(default=False, alias="_debug_render_only")

    def _spec(
        self, endpoint: Literal["generate", "chat"], prompts: list[Prompt], **more: Any
    ) -> GenerationSpec:
        request = self.request(
            truncate=self.truncate,
            shift=self.shift,
            logprobs=self.logprobs,
            top_logprobs=self.top_logprobs,
            progress=self.progress,
            template=more.pop("template", ""),
            context=more.pop("context", None),
            images=more.pop("request_images", []),
        )
        return GenerationSpec(
            model=self.model,
            endpoint=endpoint,
            request=request,
            prompts=prompts,
            options=self.options,
            keep_alive=self.keep_alive,
            think=self.think,
            format=self._format,
            ignored=self.ignored,
            **more,
        )

    def _format(self) -> Format | None:
        own = format_of(self.format)
        return only_one(self.formats() | ({"format": own} if own is not None else {}))


class GenerateRequest(GenerationBody):
    prompt: str = ""
    suffix: str = ""
    system: str = ""
    template: str = ""
    raw: bool = False
    context: Many[Annotated[int, Field(ge=0, lt=2**31)]] | None = None
    images: Many[str] = Field(default_factory=list)

    def spec(self) -> GenerationSpec:
        images = [from_base64(image) for image in self.images]
        return self._spec(
            "generate",
            [self._prompt(images)] if self.prompt else [],
            request_images=images if self.raw else [],
            template=self.template,
            context=self.context,
            system=self.system,
            images=images,
            needs=["insert"] if self.suffix else [],
            raw=self.raw,
        )

    def _prompt(self, images: list[bytes]) -> Prompt:
        if self.raw:
            return self.prompt
        if self.suffix:
            return Insert(before=self.prompt, after=self.suffix)
        # With a template of its own, nothing may be left out of the prompt.
        message = PromptMessage(role="user", content=self.prompt, images=images)
        return Chat(messages=[message], shorten=not self.template)


class ChatRequest(GenerationBody, ChatFields):
    messages: Messages[OllamaMessage] = Field(default_factory=list)
    tools: Many[dict[str, Any]] = Field(default_factory=list)

    def spec(self) -> GenerationSpec:
        messages = [_prompt_message(message) for message in self.messages]
        use = chat_choice(ToolUse(chat_tools(self.tools)), self.tool_choice)
        return self._spec(
            "chat",
            [self.chat(use, messages)] if messages else [],
            images=[image for message in messages for image in message.images],
            needs=use.needs,
        )


def _prompt_message(message: OllamaMessage) -> PromptMessage:
    given = message.model_dump() | {"images": [from_base64(image) for image in message.images]}
    return msgspec.convert(given, PromptMessage)


class ModelRequest(Body):
    """A request that names a model, as `model`, or as `name` in older clients."""

    model: Name = ""
    name: Name = ""

    @property
    def wanted(self) -> str:
        return self.model or self.name


class TransferRequest(ModelRequest):
    insecure: bool = False
    stream: bool = True


class ShowRequest(ModelRequest):
    verbose: bool = False
    system: str = ""
    options: dict[str, Any] = Field(default_factory=dict)


class CancelRequest(Body):
    id: str = ""


class CopyRequest(Body):
    source: Name = ""
    destination: Name = ""


class CreateRequest(ModelRequest):
    from_model: Name = Field(default="", alias="from")
    files: Files[str, str] | None = None
    adapters: Files[str, str] = Field(default_factory=dict)
    adapter_scales: Files[str, float] = Field(default_factory=dict)
    template: str = ""
    system: str = ""
    license: str | Licences = Field(default_factory=list)
    parameters: dict[str, Any] = Field(default_factory=dict)
    messages: Messages[OllamaMessage] = Field(default_factory=list)
    quantize: str = ""
    quantization: str = ""
    renderer: str = ""
    parser: str = ""
    requires: str = ""
    stream: bool = True

    @property
    def licenses(self) -> list[str]:
        return [text for text in ([self.license] if isinstance(self.license, str) else self.license) if text]
