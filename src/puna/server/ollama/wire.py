"""Request bodies of the native API, with the defaults that hold when a key is absent or null.

Unknown keys are ignored and key case does not matter, as with the decoder that clients were written against.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator

from puna.server.http.decoding import Body
from puna.server.jobs.own_fields import OwnFields


class Message(Body):
    """One message of a chat. The role is not checked: templates decide what they know."""

    role: str = ""
    content: str = ""
    thinking: str = ""
    images: list[str] = Field(default_factory=list)
    tool_calls: list[dict[str, Any]] = Field(default_factory=list)
    tool_name: str = ""
    tool_call_id: str = ""

    @field_validator("role")
    @classmethod
    def _lower(cls, value: str) -> str:
        return value.lower()


class GenerationBody(OwnFields):
    """What generate and chat have in common."""

    model: str = ""
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


class GenerateRequest(GenerationBody):
    prompt: str = ""
    suffix: str = ""
    system: str = ""
    template: str = ""
    raw: bool = False
    context: list[Annotated[int, Field(ge=0, lt=2**31)]] | None = None
    images: list[str] = Field(default_factory=list)


class ChatRequest(GenerationBody):
    messages: list[Message] = Field(default_factory=list)
    tools: list[dict[str, Any]] = Field(default_factory=list)


class ModelRequest(Body):
    """Requests that name one model: as `model`, or as `name` from older clients."""

    model: str = ""
    name: str = ""

    @property
    def wanted(self) -> str:
        return self.model or self.name


class ShowRequest(ModelRequest):
    verbose: bool = False
    system: str = ""
    options: dict[str, Any] = Field(default_factory=dict)


class CopyRequest(Body):
    source: str = ""
    destination: str = ""


class CreateRequest(ModelRequest):
    from_model: str = Field(default="", alias="from")
    files: dict[str, str] | None = None
    adapters: dict[str, str] = Field(default_factory=dict)
    template: str = ""
    system: str = ""
    license: str | list[str] = Field(default_factory=list)
    parameters: dict[str, Any] = Field(default_factory=dict)
    messages: list[Message] = Field(default_factory=list)
    quantize: str = ""
    quantization: str = ""
    renderer: str = ""
    parser: str = ""
    requires: str = ""
    info: dict[str, Any] = Field(default_factory=dict)
    stream: bool = True

    @property
    def licenses(self) -> list[str]:
        return [text for text in ([self.license] if isinstance(self.license, str) else self.license) if text]
