"""Request bodies of the native API, with the defaults that hold when a key is absent or null.

Unknown keys are ignored and key case does not matter, as with the decoder that clients were written against.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from puna.engine.events import Priority
from puna.server.decoding import fold_keys


class Body(BaseModel):
    """Base of all request bodies and their parts."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _fold_keys(cls, value: Any) -> Any:
        names = {
            (field.alias or name).lower(): field.alias or name for name, field in cls.model_fields.items()
        }
        return fold_keys(value, names)


class Message(Body):
    """One message of a chat. The role is not checked: templates decide what they know."""

    role: str = ""
    content: str = ""
    thinking: str = ""
    images: list[str] = []
    tool_calls: list[dict[str, Any]] = []
    tool_name: str = ""
    tool_call_id: str = ""

    @field_validator("role")
    @classmethod
    def _lower(cls, value: str) -> str:
        return value.lower()


class OwnFields(Body):
    """Puna's own fields of any generation, beside those of either API."""

    cache_prompt: bool = True
    priority: Priority = "interactive"
    ignore_eos: bool = False  # as in vLLM and llama.cpp


class Generation(OwnFields):
    """What generate and chat have in common."""

    model: str = ""
    format: Any = None
    options: dict[str, Any] = {}
    keep_alive: Any = None
    think: Any = None
    stream: bool = True
    truncate: bool = True
    shift: bool = True
    logprobs: bool = False
    top_logprobs: int = 0
    render_only: bool = Field(default=False, alias="_debug_render_only")


class GenerateRequest(Generation):
    prompt: str = ""
    suffix: str = ""
    system: str = ""
    template: str = ""
    raw: bool = False
    context: list[Annotated[int, Field(ge=0, lt=2**31)]] | None = None
    images: list[str] = []


class ChatRequest(Generation):
    messages: list[Message] = []
    tools: list[dict[str, Any]] = []


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
    options: dict[str, Any] = {}


class CopyRequest(Body):
    source: str = ""
    destination: str = ""


class CreateRequest(ModelRequest):
    from_model: str = Field(default="", alias="from")
    files: dict[str, str] | None = None
    adapters: dict[str, str] = {}
    template: str = ""
    system: str = ""
    license: str | list[str] = []
    parameters: dict[str, Any] = {}
    messages: list[Message] = []
    quantize: str = ""
    quantization: str = ""
    renderer: str = ""
    parser: str = ""
    requires: str = ""
    info: dict[str, Any] = {}
    stream: bool = True

    @property
    def licenses(self) -> list[str]:
        return [text for text in ([self.license] if isinstance(self.license, str) else self.license) if text]


def texts_or_tokens(given: Any) -> list[str | list[int]] | None:
    """What OpenAI's API takes for a prompt or an input, as a list: a text, token ids, or several of one kind.

    None for anything else, an empty list among it.
    """
    if isinstance(given, str) or _are_ints(given):
        return [given]
    if not isinstance(given, list) or not given:
        return None
    one_kind = all(isinstance(one, str) for one in given) or all(_are_ints(one) for one in given)
    return list(given) if one_kind else None


def _are_ints(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)
