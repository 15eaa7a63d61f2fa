"""Request bodies and replies of the page's own routes."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from pydantic import Field

from puna.server.history.chats import MessageDraft, State, StoredCall
from puna.server.http.bodies import Body, Many
from puna.server.ollama.wire import ChatRequest

#: Answers to one request of the page.
MAX_SAMPLES: Final = 16


class NewChat(Body):
    title: str = ""
    folder: str = ""
    tags: Many[str] = Field(default_factory=list)
    settings: dict[str, Any] = Field(default_factory=dict)


class ChatChanges(Body):
    """Changes of a chat; fields that are absent stay as they are."""

    title: str | None = None
    pinned: bool | None = None
    folder: str | None = None
    tags: Many[str] | None = None
    settings: dict[str, Any] | None = None
    leaf: str | None = None

    @property
    def given(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


class CallField(Body):
    id: str = ""
    name: str = ""
    arguments: str = ""


class FileField(Body):
    id: str = ""
    name: str = ""


class NewMessage(Body):
    parent: str | None = None
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str = ""
    calls: Many[CallField] = Field(default_factory=list)
    tool_name: str = ""
    tool_call_id: str = ""
    files: Many[FileField] = Field(default_factory=list)

    @property
    def draft(self) -> MessageDraft:
        return MessageDraft(
            parent=self.parent,
            role=self.role,
            content=self.content,
            thinking=self.thinking,
            calls=[StoredCall(call.id, call.name, call.arguments) for call in self.calls],
            tool_name=self.tool_name,
            tool_call_id=self.tool_call_id,
            files=[(file.id, file.name) for file in self.files],
        )


class ToolsOf(Body):
    servers: Many[str] = Field(default_factory=list)


class ToolCall(Body):
    """A call; `confirmed`: a person has seen and allowed it."""

    server: str
    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    confirmed: bool = False


class PresetBody(Body):
    settings: dict[str, Any] = Field(default_factory=dict)


class Prefix(Body):
    """The beginning of an answer, which is the last message of the request, too."""

    thinking: str = ""
    content: str = ""


class NewRun(Body):
    """A run: `request` is a body of `/api/chat` that may also have `n`, the number of answers.

    With a `chat`, the answers become messages of it, below `parent`; `title` has the model name a chat that
    has no title yet.
    """

    chat: str | None = None
    parent: str | None = None
    title: bool = False
    prefix: Prefix = Prefix()
    request: dict[str, Any]


class RunRequest(ChatRequest):
    n: int = Field(default=1, ge=1, le=MAX_SAMPLES)


class Me(msgspec.Struct, frozen=True):
    """The caller, and whether the server asks for keys, keeps chats, and lets the caller call tools."""

    version: str
    keys: bool
    name: str | None  # of the caller's key
    scopes: list[str]
    history: bool
    mcp: bool


class RunState(msgspec.Struct, frozen=True):
    id: str
    chat: str | None
    messages: list[str] | None
    model: str
    state: State
    started: float  # seconds since the epoch


class RunList(msgspec.Struct, frozen=True):
    runs: list[RunState]


class RunBegun(msgspec.Struct, frozen=True):
    """The run, and the messages that its answers become; none if they are not kept."""

    id: str
    chat: str | None
    messages: list[str] | None


class Presets(msgspec.Struct, frozen=True):
    presets: dict[str, Any]


class Skipped(msgspec.Struct, frozen=True):
    """A chat of an import that was left out, and why."""

    title: str
    reason: str


class ImportReport(msgspec.Struct, frozen=True):
    imported: int
    skipped: list[Skipped]


class Deleted(msgspec.Struct, frozen=True):
    """Chats that were deleted, and how long they can be restored."""

    chats: int
    undo_s: float
