"""One chat: its settings, its messages, and its requests to the server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from puna.cli import terminal
from puna.cli.answer import AnswerPrinter, Waiting
from puna.cli.attachments import take_files
from puna.cli.client import Client
from puna.cli.oneshot import apply_model, embeds, no_text, print_stream, progress_fields, report, show_model
from puna.cli.settings import RunSettings
from puna.errors import ConnectionFailedError, ServerError

if TYPE_CHECKING:
    from puna.cli.mcp_tools import ChatTools

Message = dict[str, Any]

#: Rounds of tool calls after one message; a model could go on for ever.
MAX_ROUNDS: Final = 25


@dataclass
class Session:
    """The state of the interactive prompt."""

    client: Client
    settings: RunSettings
    messages: list[Message] = field(default_factory=list)
    shown: dict[str, Any] = field(default_factory=dict)  # the reply of /api/show of the model
    tools: ChatTools | None = None  # from the first MCP server on
    _warned: set[str] = field(default_factory=set)

    def interrupt(self) -> None:
        """End the current request, or the call of a tool; for a signal handler."""
        self.client.interrupt()
        if self.tools is not None:
            self.tools.interrupt()

    def connect(self, server: str) -> None:
        """Offer the tools of an MCP server to the model. Raises MCPServerError and UnavailableError."""
        self._chat_tools().connect(server)

    def tool_overview(self) -> str:
        """Return the MCP servers, connected and not, with their tools."""
        return self._chat_tools().overview()

    def _chat_tools(self) -> ChatTools:
        from puna.cli.mcp_tools import ChatTools

        self.tools = self.tools or ChatTools(self.settings.mcp_allow)
        return self.tools

    def close(self) -> None:
        """Disconnect the MCP servers."""
        if self.tools is not None:
            self.tools.close()

    def open(self) -> None:
        """Load the model.

        Raises ServerError, for example if it does not exist, and RequestError for a model that does not chat.
        """
        self.shown = show_model(self.client, self.settings.model)
        if embeds(self.shown):
            raise no_text(self.settings.model)
        if (self.settings.think or self.settings.think_budget) and not self.can_think:
            terminal.warn(f"model '{self.settings.model}' does not support thinking and answers without it")
            self.settings.think = self.settings.think_budget = None
        apply_model(self.settings, self.shown)
        request = self.settings.request()
        body = {name: request[name] for name in ("model", "options", "keep_alive") if name in request}
        with Waiting(self.client.host, self.settings.model):
            loaded = self.client.post("/api/generate", body | {"prompt": "", "stream": False})
        for warning in self._new(loaded.get("warnings") or ()):
            terminal.warn(warning)
        self.clear()

    def switch(self, model: str) -> None:
        """Continue with another model and no messages. If it cannot be opened, nothing changes."""
        before = self.settings.model, self.settings.think, self.shown, self.messages
        self.settings.model = model
        try:
            self.open()
        except BaseException:
            self.settings.model, self.settings.think, self.shown, self.messages = before
            raise

    def clear(self) -> None:
        """Drop all messages except the system message."""
        self.messages = []
        if self.settings.system is not None:
            self.set_system(self.settings.system)

    def set_system(self, text: str) -> None:
        """Add a system message that applies from now on, replacing one that directly precedes it."""
        self.settings.system = text
        message = {"role": "system", "content": text}
        if self.messages and self.messages[-1]["role"] == "system":
            self.messages[-1] = message
        else:
            self.messages.append(message)

    @property
    def can_think(self) -> bool:
        return "thinking" in (self.shown.get("capabilities") or ())

    def ask(self, text: str) -> None:
        """Send a message and print the answer.

        If Ctrl-C or the end of the server cuts the answer short, the part that arrived is kept. If nothing
        arrived, the message is removed, and PunaError is raised unless Ctrl-C was the cause.
        """
        message: Message = {"role": "user", "content": text}
        text, files = take_files(text, self.settings.model, self.shown)
        if files:
            message = {"role": "user", "content": text, "images": files}
        self.messages.append(message)
        for _ in range(MAX_ROUNDS):
            calls = self._answer()
            if not calls or self.tools is None:
                return
            self.messages += self.tools.answer(calls, "vision" in (self.shown.get("capabilities") or ()))
            if self.tools.interrupted:
                return
        terminal.warn(f"stopped after {MAX_ROUNDS} rounds of tool calls; send a message to go on")

    def _answer(self) -> list[Mapping[str, Any]]:
        """Request and print the answer to the last message, and return its tool calls; see `ask`."""
        described = self.tools.described if self.tools is not None else []
        printer = AnswerPrinter(
            word_wrap=self.settings.word_wrap,
            hide_thinking=self.settings.hide_thinking,
            has_tools=bool(described),
        )
        body = self.settings.request() | {"messages": self.messages} | progress_fields()
        if described:
            body["tools"] = described
        items = self.client.stream("/api/chat", body)
        final = None
        try:
            final = print_stream(self.client, self.settings, items, printer)
        except ConnectionFailedError as error:
            if not (printer.content or printer.thinking) and self.messages[-1]["role"] == "user":
                self._forget()
                raise
            terminal.note(f"Error: {error}")
        except BaseException:
            self._forget()
            raise
        if printer.content or printer.thinking or printer.calls:
            self.messages.append(_answer(printer))
        elif final is None:
            self._forget()  # interrupted before the first word
        if final is not None:
            report(final | {"warnings": self._new(final.get("warnings") or ())}, self.settings.verbose)
        return printer.calls if final is not None else []

    def _forget(self) -> None:
        """Forget a message without an answer; results of tools are kept, since calls have effects."""
        if self.messages[-1]["role"] == "user":
            self.messages.pop()

    def _new(self, warnings: Iterable[str]) -> list[str]:
        """Return the `warnings` that this chat has not shown yet."""
        new = [text for text in warnings if text not in self._warned]
        self._warned.update(new)
        return new

    def save(self, name: str) -> None:
        """Create model `name` from the current model, its settings and these messages."""
        body: dict[str, Any] = {"model": name, "from": self.settings.model}
        if self.settings.system is not None:
            body["system"] = self.settings.system
        if self.settings.options:
            body["parameters"] = self.settings.options
        # A Modelfile has no place for calls of tools and their results.
        said = [
            {key: value for key, value in message.items() if key != "tool_calls"}
            for message in self.messages
            if message["role"] not in ("system", "tool") and message["content"]
        ]
        if said:
            body["messages"] = said
        try:
            for _ in self.client.stream("/api/create", body):
                pass
        except ServerError as error:
            if "invalid model name" in str(error):
                raise ServerError(f"The model name '{name}' is invalid", error.status_code) from None
            raise


def _answer(printer: AnswerPrinter) -> Message:
    message: Message = {"role": "assistant", "content": printer.content}
    if printer.thinking:
        message["thinking"] = printer.thinking
    if printer.calls:
        message["tool_calls"] = printer.calls
    return message
