"""Recorded sessions of coding agents, of our own making: the shapes of their requests, in other words.

A session is the list of its requests, the same on every run. Each agent is a function that makes one, and
says what the agent does to the beginning of its prompts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.agents.conversation import Call, Conversation, Message, Tool
from tests.agents.wire import Request, chat_request, messages_request, responses_request

TURNS: Final = 30

#: The words of all texts, so that a tiny vocabulary can have a token for each.
WORDS: Final = (
    *("the", "file", "test", "value", "error", "result", "function", "should", "return", "check", "before"),
    *("after", "read", "write", "path", "line", "change", "list", "number", "name", "server", "request"),
    *("answer", "cache", "model", "token", "text", "when", "that", "with", "from", "into", "each", "first"),
    *("last", "never", "always", "please", "user", "tool", "call", "message", "agent", "build", "branch"),
)


class Teller:
    """A source of text, code and names that depends on its seed only."""

    def __init__(self, seed: str) -> None:
        self.dice = random.Random(seed)
        self._calls = 0

    def text(self, words: int) -> str:
        return " ".join(self.dice.choices(WORDS, k=words)).capitalize() + "."

    def rules(self, count: int) -> str:
        """Return a list of instructions."""
        return "\n".join(f"- {self.text(14)}" for _ in range(count))

    def code(self, lines: int) -> str:
        return "\n".join(
            f"    {self.dice.choice(WORDS)} = {self.dice.choice(WORDS)}({self.dice.randrange(1000)})"
            for _ in range(lines)
        )

    def path(self) -> str:
        return f"src/{self.dice.choice(WORDS)}/{self.dice.choice(WORDS)}_{self.dice.randrange(100)}.py"

    def hex(self, digits: int) -> str:
        return f"{self.dice.randrange(16**digits):0{digits}x}"

    def call(self, name: str, prefix: str = "call_", **arguments: Any) -> Call:
        self._calls += 1
        return Call(f"{prefix}{self._calls:04}{self.hex(8)}", name, arguments)

    def tools(self, *names: str, words: int = 18, strict: bool | None = None) -> list[Tool]:
        return [
            Tool(
                name,
                self.text(words),
                {
                    "type": "object",
                    "properties": {
                        "path": {"type": "string", "description": self.text(6)},
                        "limit": {"type": "integer", "description": self.text(6)},
                    },
                    "required": ["path"],
                    "additionalProperties": False,
                },
                strict,
            )
            for name in names
        ]


@dataclass(frozen=True)
class Session:
    """The requests of one session. `apart` is set if the API makes a message of each part of a text."""

    agent: str
    api: str
    requests: list[Request]
    has_images: bool = False

    @property
    def apart(self) -> bool:
        return self.api == "chat"

    def __str__(self) -> str:
        return self.agent


#: A picture for each number, as a file. Sessions without pictures need none.
Pictures = Callable[[int], bytes]


def claude_code(turns: int = TURNS, picture: Pictures | None = None) -> Session:
    """Claude Code: Messages with a checksum at the head of `system`, and tokens left after each result.

    Three subagents take turns in the middle; at two thirds the conversation is compacted. Marks of the cache
    move along, and thinking is sent back.
    """
    teller = Teller("claude-code")
    names = ("Task", "Bash", "Glob", "Grep", "Read", "Edit", "Write", "WebFetch", "TodoWrite", "NotebookEdit")
    tools = teller.tools(*names)
    identity = "You are an agent that works in a terminal."
    system = [
        identity,
        f"{teller.text(60)}\n\n# Rules\n{teller.rules(12)}",
        "<env>\ncwd: /w\ndate: 2026-03-01\n</env>",
    ]
    reminder = f"<system-reminder>\n{teller.rules(4)}\n</system-reminder>"
    requests: list[Request] = []
    left = 180_000

    def begun(task: str) -> Conversation:
        conversation = Conversation(system=list(system), tools=list(tools))
        conversation.add("user", reminder, task)
        return conversation

    def send(conversation: Conversation) -> None:
        version = f"cc_version=2.1.100.{teller.hex(3)}; cc_entrypoint=cli; cch={teller.hex(5)};"
        conversation.billing = f"x-anthropic-billing-header: {version}"
        requests.append(
            messages_request(
                conversation,
                metadata={"user_id": "user_0_account__session_0"},
                thinking={"type": "enabled", "budget_tokens": 2000},
            )
        )

    def step(conversation: Conversation, *, pictured: bool = False) -> None:
        nonlocal left
        left -= teller.dice.randrange(500, 3000)
        call = teller.call("Read", "toolu_", path=teller.path(), limit=teller.dice.randrange(400))
        conversation.add("assistant", teller.text(8), calls=(call,), thinking=teller.text(10))
        images = (picture(left),) if pictured and picture is not None else ()
        conversation.add("tool", teller.code(7), answers=call.id, images=images)
        conversation.add("system", f"<total_tokens>{left} tokens left</total_tokens>")

    main = begun(teller.text(25))
    send(main)
    for turn in range(1, turns):
        if turn == turns // 3:
            calls = tuple(teller.call("Task", "toolu_", path=teller.text(9)) for _ in range(3))
            main.add("assistant", calls=calls)
            helpers = [begun(teller.text(20)) for _ in calls]
            for helper in helpers:
                helper.system = [identity, f"{teller.text(20)} You help another agent."]
                helper.tools = tools[1:]
            for _ in range(3):
                for helper in helpers:
                    send(helper)
                    step(helper)
            for call in calls:
                main.add("tool", teller.text(30), answers=call.id)
        elif turn == 2 * turns // 3:
            main.add("user", teller.text(30))
            send(main)
            main = begun(f"This session continues another one. {teller.text(90)}")
        else:
            step(main, pictured=turn % 5 == 2)
        send(main)
    return Session("Claude Code", "messages", requests, picture is not None)


def codex(turns: int = TURNS, picture: Pictures | None = None) -> Session:
    """Codex CLI: Responses with instructions, a developer's message, and reasoning between the calls."""
    teller = Teller("codex")
    conversation = Conversation(
        system=[f"{teller.text(60)}\n\n## Editing\n{teller.rules(12)}"],
        tools=teller.tools(
            "exec_command", "write_stdin", "update_plan", "view_image", "apply_patch", strict=False
        ),
    )
    conversation.add("system", f"<permissions instructions>\n{teller.rules(3)}\n</permissions instructions>")
    about = "  <cwd>/w</cwd>\n  <current_date>2026-03-01</current_date>"
    conversation.add("user", f"# AGENTS.md\n\n{teller.rules(5)}")
    conversation.add("user", f"<environment_context>\n{about}\n</environment_context>")
    conversation.add("user", teller.text(25))
    requests: list[Request] = []
    for turn in range(turns):
        requests.append(
            responses_request(
                conversation,
                prompt_cache_key="00000000-0000-4000-8000-000000000000",
                include=["reasoning.encrypted_content"],
                parallel_tool_calls=True,
                reasoning={"effort": "medium", "summary": "auto"},
            )
        )
        if turn == 2 * turns // 3:
            kept = [message for message in conversation.messages if message.role in ("system", "user")]
            conversation.messages = [*kept, Message("user", (f"Summary: {teller.text(60)}",))]
        elif turn % 7 == 6:
            conversation.add("assistant", teller.text(20))
            conversation.add("user", teller.text(15))
        else:
            pictured = picture is not None and turn % 5 == 2
            call = teller.call("view_image" if pictured else "exec_command", path=teller.path())
            conversation.add("assistant", calls=(call,), thinking=teller.text(10))
            images = (picture(turn),) if pictured and picture is not None else ()
            conversation.add("tool", teller.code(7), answers=call.id, images=images)
    return Session("Codex CLI", "responses", requests, picture is not None)


def opencode(turns: int = TURNS) -> Session:
    """OpenCode: chats with reasoning, a title by another prompt, and old results cleared by the client."""
    teller = Teller("opencode")
    tools = teller.tools(
        "bash", "edit", "glob", "grep", "list", "read", "task", "todowrite", "webfetch", "write"
    )
    conversation = Conversation(
        system=[
            teller.text(60),
            teller.rules(10),
            "<env>\n  Platform: linux\n  Today's date: Sun Mar 01 2026\n</env>",
        ],
        tools=tools,
    )
    task = teller.text(25)
    title = Conversation(system=[f"Give this conversation a title. {teller.text(20)}"])
    title.add("user", task)
    conversation.add("user", task)
    requests = [chat_request(title, max_tokens=1), chat_request(conversation)]
    for turn in range(1, turns):
        call = teller.call("read", path=teller.path())
        conversation.add("assistant", calls=(call,), thinking=teller.text(8))
        conversation.add("tool", teller.code(8), answers=call.id)
        if turn % 12 == 0:
            conversation.messages = _cleared(conversation.messages, keep=6)
        requests.append(chat_request(conversation))
    return Session("OpenCode", "chat", requests)


def _cleared(messages: Sequence[Message], keep: int) -> list[Message]:
    """Return the messages with all results but the last `keep` cleared by the client."""
    results = [place for place, message in enumerate(messages) if message.role == "tool"]
    old = set(results[:-keep])
    return [
        Message("tool", ("[Old tool result content cleared]",), answers=message.answers)
        if place in old
        else message
        for place, message in enumerate(messages)
    ]


def cline(turns: int = TURNS, picture: Pictures | None = None) -> Session:
    """Cline and Roo: chats without tools, whose calls are tags in the text; each message says the time.

    When the context is full, the middle of the conversation is left out.
    """
    teller = Teller("cline")
    conversation = Conversation(system=[f"{teller.text(80)}\n\n# Tools\n{teller.rules(20)}"])

    def details(turn: int) -> str:
        about = f"# Current Time\n10:{turn:02}:07 AM\n# Files\n{teller.path()}"
        return f"<environment_details>\n{about}\n</environment_details>"

    conversation.add("user", f"<task>\n{teller.text(25)}\n</task>", details(0))
    requests = [chat_request(conversation)]
    for turn in range(1, turns):
        read = f"<read_file><path>{teller.path()}</path></read_file>"
        conversation.add("assistant", f"{teller.text(10)}\n{read}")
        images = (picture(turn),) if picture is not None and turn % 5 == 2 else ()
        conversation.add("user", f"[read_file] Result:\n{teller.code(7)}", details(turn), images=images)
        if turn == 2 * turns // 3:
            first, note = conversation.messages[:2], Message("assistant", ("[some history was left out]",))
            conversation.messages = [first[0], note, *conversation.messages[-9:]]
        requests.append(chat_request(conversation))
    return Session("Cline", "chat", requests, picture is not None)


def aider(turns: int = TURNS) -> Session:
    """Aider: chats without tools: examples, a map and the files before the history, a reminder at the end.

    The files change as they are edited, so that everything after them is new in each second request.
    """
    teller = Teller("aider")
    start = Conversation(system=[f"{teller.text(60)}\n{teller.rules(10)}"])
    for _ in range(2):
        start.add("user", teller.text(20))
        start.add("assistant", f"{teller.text(6)}\n{teller.code(6)}")
    start.add("user", f"Here is a map of the repository:\n{teller.code(30)}")
    start.add("assistant", "Ok, I read it.")
    files, history = teller.code(20), [Message("user", (teller.text(20),))]
    reminder = Message("system", (teller.rules(3),))
    requests: list[Request] = []
    for turn in range(turns):
        sent = start.copied()
        sent.add("user", f"These are the files:\n{files}")
        sent.add("assistant", "Ok.")
        sent.messages += [*history, reminder]
        requests.append(chat_request(sent))
        history += [Message("assistant", (teller.text(30),)), Message("user", (teller.text(10),))]
        if turn % 2:
            files = f"{files}\n{teller.code(2)}"
    return Session("Aider", "chat", requests)


def goose(turns: int = TURNS) -> Session:
    """Goose: chats whose last message says the time and the directory, which is left out of the earlier ones.

    Extensions are kept in maps, so that tools and their keys come in another order each time.
    """
    teller = Teller("goose")
    conversation = Conversation(
        system=[f"{teller.text(60)}\n\n# Extensions\n{teller.rules(12)}"],
        tools=teller.tools(
            *("developer__shell", "developer__text_editor", "platform__search", "memory__remember"),
            *("todo__write", "extensionmanager__search", "computer__cache"),
        ),
    )
    conversation.add("user", teller.text(25))
    requests: list[Request] = []
    for turn in range(turns):
        sent = conversation.copied()
        teller.dice.shuffle(sent.tools)
        last = sent.messages[-1]
        info = f"<info-msg>\nIt is 2026-03-01 10:{turn:02}:00\nWorking directory: /w\n</info-msg>"
        sent.messages.append(Message("user", (info,)))
        assert last.role in ("user", "tool")
        requests.append(chat_request(sent, lambda tool: _shuffled(tool, teller.dice)))
        call = teller.call("developer__shell", path=teller.path())
        conversation.add("assistant", teller.text(6), calls=(call,))
        conversation.add("tool", teller.code(7), answers=call.id)
    return Session("Goose", "chat", requests)


def _shuffled(value: Any, dice: random.Random, *, names: bool = False) -> Any:
    """Return a tool with its keys in another order; `names` of properties keep theirs."""
    if not isinstance(value, dict):
        return value
    keys = list(value)
    if not names:
        dice.shuffle(keys)
    return {key: _shuffled(value[key], dice, names=key == "properties" and not names) for key in keys}


def continue_(turns: int = TURNS) -> Session:
    """Continue: chats with tools and files of the editor in the user's messages; it begins anew half-way."""
    teller = Teller("continue")
    tools = teller.tools(
        "read_file", "create_new_file", "run_terminal_command", "file_glob_search", "view_diff"
    )
    system = [f"<important_rules>\n{teller.rules(10)}\n</important_rules>"]

    def begun() -> Conversation:
        conversation = Conversation(system=list(system), tools=list(tools))
        conversation.add("user", f"```py {teller.path()}\n{teller.code(12)}\n```\n", teller.text(20))
        return conversation

    conversation = begun()
    requests = [chat_request(conversation)]
    for turn in range(1, turns):
        if turn == turns // 2:
            conversation = begun()
        elif turn % 5 == 0:
            conversation.add("assistant", teller.text(20))
            conversation.add("user", teller.text(15))
        else:
            calls = tuple(teller.call("read_file", path=teller.path()) for _ in range(1 + turn % 2))
            conversation.add("assistant", teller.text(4), calls=calls)
            for call in calls:
                conversation.add("tool", teller.code(5), answers=call.id)
        requests.append(chat_request(conversation))
    return Session("Continue", "chat", requests)


AGENTS: Final = (claude_code, codex, opencode, cline, aider, goose, continue_)
#: Agents that send pictures.
SEEING: Final = (claude_code, codex, cline)
