"""The agents `puna launch` knows: where they are found, and how each is pointed to this server.

Environment variables and files of our own come first; the user's settings are changed only where an agent
reads nothing else. No file contains an API key: agents read it from a variable.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from puna import config
from puna.cli.launch.files import MergedFile, OwnFile, SettingsFile
from puna.cli.launch.jsonc import NamedItem

#: Named in agents' settings, where they read the key from the environment.
KEY_VARIABLE = "PUNA_API_KEY"
#: The context assumed where an agent needs a number and the server does not tell.
_UNKNOWN_CONTEXT = 32768


@dataclass(frozen=True)
class Session:
    """The server's address and the model that an agent is started with.

    `context` is the number of tokens a request may use, 0 if unknown.
    """

    url: str
    model: str
    context: int = 0
    capabilities: frozenset[str] = frozenset()

    @property
    def api(self) -> str:
        """The base address of OpenAI's API."""
        return f"{self.url}/v1"

    @property
    def known_context(self) -> int:
        return self.context or _UNKNOWN_CONTEXT

    @property
    def answer(self) -> int:
        """The most tokens of an answer: a quarter of the context, which the prompt has to share."""
        return min(self.known_context // 4, 32768)

    def file(self, name: str) -> Path:
        """Return the path of a file of ours for this model, so that two sessions do not share one."""
        folder = re.sub(r"[^\w.-]+", "-", self.model).lstrip(".")  # a server's name must not lead elsewhere
        return config.home() / "launch" / (folder or "model") / name


@dataclass(frozen=True)
class Setup:
    """Everything that points an agent to the server; the variables in `keys` get the API key."""

    variables: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = (KEY_VARIABLE,)
    arguments: tuple[str, ...] = ()
    files: tuple[SettingsFile, ...] = ()


@dataclass(frozen=True)
class Agent:
    """An agent: its program, how it is installed, the API it speaks, and what it needs of a model."""

    name: str
    title: str
    program: str
    install: str  # a command to show, never run
    api: str
    context: int  # tokens its own prompt and a little work need
    setup: Callable[[Session], Setup]
    tools: bool = True
    #: Arguments without which the program does not start a session, unless the user gives others.
    default: tuple[str, ...] = ()
    #: Folders, besides those of PATH, that its installer uses.
    folders: tuple[str, ...] = ("~/.local/bin",)
    aliases: tuple[str, ...] = ()

    def find(self) -> str | None:
        """Return the path of the program, or None if it is not installed."""
        folders = os.pathsep.join(os.path.expanduser(folder) for folder in self.folders)
        return shutil.which(self.program) or shutil.which(self.program, path=folders)


def _claude(session: Session) -> Setup:
    variables = {
        "ANTHROPIC_BASE_URL": session.url,
        "ANTHROPIC_API_KEY": "",  # the user's own would be sent to the server, or asked about
        "ANTHROPIC_MODEL": session.model,
        "ANTHROPIC_DEFAULT_OPUS_MODEL": session.model,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": session.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": session.model,
        "ANTHROPIC_SMALL_FAST_MODEL": session.model,
        "CLAUDE_CODE_SUBAGENT_MODEL": session.model,
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(session.answer),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        # Both change the beginning of every prompt, which could not be reused then.
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_TOTAL_TOKENS_REMINDER": "off",
    }
    if session.context:
        variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(session.context)
    return Setup(variables, ("ANTHROPIC_AUTH_TOKEN",))


def _codex(session: Session) -> Setup:
    provider = {"name": "Puna", "base_url": session.api, "wire_api": "responses", "env_key": KEY_VARIABLE}
    settings: dict[str, object] = {
        "model": session.model,
        "model_provider": "puna",
        **{f"model_providers.puna.{name}": value for name, value in provider.items()},
        "web_search": "disabled",  # is a service of OpenAI's
    }
    if session.context:
        settings["model_context_window"] = session.context
    # A JSON string or number is one of TOML as well.
    options = [("-c", f"{name}={json.dumps(value)}") for name, value in settings.items()]
    return Setup(arguments=tuple(word for option in options for word in option))


def _opencode(session: Session) -> Setup:
    model = {
        "name": session.model,
        "tool_call": True,
        "attachment": "vision" in session.capabilities,
        "limit": {"context": session.known_context, "output": session.answer},
    }
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Puna",
        "options": {"baseURL": session.api, "apiKey": f"{{env:{KEY_VARIABLE}}}"},
        "models": {session.model: model},
    }
    name = f"puna/{session.model}"
    content = {"provider": {"puna": provider}, "model": name, "small_model": name}
    return Setup({"OPENCODE_CONFIG_CONTENT": json.dumps(content)})


def _goose(session: Session) -> Setup:
    address = urlsplit(session.api)
    variables = {
        "GOOSE_PROVIDER": "openai",
        "GOOSE_MODEL": session.model,
        "OPENAI_HOST": f"{address.scheme}://{address.netloc}",
        "OPENAI_BASE_PATH": f"{address.path.lstrip('/')}/chat/completions",
    }
    if session.context:
        variables["GOOSE_CONTEXT_LIMIT"] = str(session.context)
    return Setup(variables, ("OPENAI_API_KEY",))


def _cline(session: Session) -> Setup:
    settings = {"provider": "ollama", "model": session.model, "baseUrl": session.api}
    provider = {"settings": settings, "tokenSource": "manual", "updatedAt": "2026-01-01T00:00:00.000Z"}
    content = {"version": 1, "lastUsedProvider": "ollama", "providers": {"ollama": provider}}
    file = OwnFile(session.file("cline-providers.json"), _json(content))
    return Setup(
        {"CLINE_PROVIDER_SETTINGS_PATH": str(file.path)},
        ("OLLAMA_API_KEY",),
        ("--provider", "ollama", "--model", session.model),
        (file,),
    )


def _aider(session: Session) -> Setup:
    name = f"openai/{session.model}"
    about = {
        "litellm_provider": "openai",
        "mode": "chat",
        "max_input_tokens": session.known_context,
        "max_output_tokens": session.answer,
    }
    file = OwnFile(session.file("aider-models.json"), _json({name: about}))
    variables = {
        "OPENAI_API_BASE": session.api,
        "AIDER_MODEL": name,
        "AIDER_WEAK_MODEL": name,
        "AIDER_MODEL_METADATA_FILE": str(file.path),
        "AIDER_SHOW_MODEL_WARNINGS": "false",
    }
    return Setup(variables, ("OPENAI_API_KEY",), files=(file,))


def _crush(session: Session) -> Setup:
    model = {
        "id": session.model,
        "name": session.model,
        "context_window": session.known_context,
        "default_max_tokens": session.answer,
        "can_reason": "thinking" in session.capabilities,
        "supports_attachments": "vision" in session.capabilities,
        **dict.fromkeys(
            ("cost_per_1m_in", "cost_per_1m_out", "cost_per_1m_in_cached", "cost_per_1m_out_cached"), 0
        ),
    }
    provider = {
        "name": "Puna",
        "type": "openai-compat",
        "base_url": session.api,
        "api_key": f"${KEY_VARIABLE}",
        "discover_models": False,
        "models": [model],
    }
    chosen = {"model": session.model, "provider": "puna", "max_tokens": session.answer}
    values = (
        (("providers", "puna"), provider),
        (("models", "large"), chosen),
        (("models", "small"), chosen),
    )
    # Crush merges this folder's file with the user's settings, and remembers its choices there.
    file = MergedFile(session.file("crush") / "crush.json", values, in_our_folder=True)
    return Setup({"CRUSH_GLOBAL_DATA": str(file.path.parent)}, files=(file,))


def _continue(session: Session) -> Setup:
    sees = ["image_input"] if "vision" in session.capabilities else []
    model = {
        "name": session.model,
        "provider": "openai",
        "model": session.model,
        "apiBase": session.api,
        "apiKey": f"${{{{ secrets.{KEY_VARIABLE} }}}}",
        "useResponsesApi": False,
        "roles": ["chat", "edit", "apply"],
        "capabilities": ["tool_use", *sees],
        "defaultCompletionOptions": {"contextLength": session.known_context, "maxTokens": session.answer},
    }
    content = {"name": "Puna", "version": "1.0.0", "schema": "v1", "models": [model]}
    file = OwnFile(session.file("continue.yaml"), _json(content))  # JSON is YAML
    return Setup(arguments=("--config", str(file.path)), files=(file,))


def _qwen(session: Session) -> Setup:
    variables = {"OPENAI_BASE_URL": session.api, "OPENAI_MODEL": session.model}
    return Setup(variables, ("OPENAI_API_KEY",), ("--auth-type", "openai", "--model", session.model))


def _copilot(session: Session) -> Setup:
    variables = {
        "COPILOT_PROVIDER_TYPE": "openai",
        "COPILOT_PROVIDER_BASE_URL": session.api,
        "COPILOT_PROVIDER_WIRE_API": "responses",
        "COPILOT_MODEL": session.model,
    }
    if session.context:
        variables["COPILOT_PROVIDER_MAX_PROMPT_TOKENS"] = str(session.context - session.answer)
        variables["COPILOT_PROVIDER_MAX_OUTPUT_TOKENS"] = str(session.answer)
    return Setup(variables, ("COPILOT_PROVIDER_API_KEY",))


def _pi(session: Session) -> Setup:
    model = {
        "id": session.model,
        "name": session.model,
        "reasoning": False,
        "input": ["text", "image"] if "vision" in session.capabilities else ["text"],
        "cost": dict.fromkeys(("input", "output", "cacheRead", "cacheWrite"), 0),
        "contextWindow": session.known_context,
        "maxTokens": session.answer,
        "compat": {"supportsDeveloperRole": False, "supportsReasoningEffort": False},
    }
    provider = {"baseUrl": session.api, "api": "openai-completions", "models": [model]}
    # Pi's releases differ in how a file names a variable; a program reads it in all of them.
    content = (
        f"const provider = {_json(provider).rstrip()};\n"
        "export default (pi) =>\n"
        f'  pi.registerProvider("puna", {{ ...provider, apiKey: process.env.{KEY_VARIABLE} }});\n'
    )
    file = OwnFile(session.file("pi.js"), content)
    return Setup(
        arguments=("--extension", str(file.path), "--provider", "puna", "--model", session.model),
        files=(file,),
    )


def _droid(session: Session) -> Setup:
    identity = "custom:puna-0"
    model = {
        "id": identity,
        "model": session.model,
        "displayName": f"{session.model} (Puna)",
        "baseUrl": session.api,
        "apiKey": f"${{{KEY_VARIABLE}}}",
        "provider": "generic-chat-completion-api",
        "maxOutputTokens": session.answer,
        "supportsImages": "vision" in session.capabilities,
    }
    values = ((("customModels",), NamedItem("id", model)), (("sessionDefaultSettings", "model"), identity))
    return Setup(files=(MergedFile(Path("~/.factory/settings.json").expanduser(), values),))


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


_NPM = "npm install -g "
_MESSAGES, _CHATS, _RESPONSES = "messages", "chat completions", "responses"

AGENTS = (
    Agent(
        name="claude",
        title="Claude Code",
        program="claude",
        install="curl -fsSL https://claude.ai/install.sh | bash",
        api=_MESSAGES,
        context=32768,
        setup=_claude,
        folders=("~/.local/bin", "~/.claude/local"),
    ),
    Agent("codex", "Codex", "codex", _NPM + "@openai/codex", _RESPONSES, 16384, _codex),
    Agent(
        name="opencode",
        title="OpenCode",
        program="opencode",
        install=_NPM + "opencode-ai",
        api=_CHATS,
        context=16384,
        setup=_opencode,
        folders=("~/.opencode/bin", "~/.local/bin"),
    ),
    Agent(
        name="goose",
        title="Goose",
        program="goose",
        install="curl -fsSL https://github.com/block/goose/releases/download/stable/download_cli.sh | bash",
        api=_CHATS,
        context=16384,
        setup=_goose,
        default=("session",),
    ),
    Agent("cline", "Cline", "cline", _NPM + "cline", "Ollama's chat", 32768, _cline),
    Agent(
        name="aider",
        title="Aider",
        program="aider",
        install="python -m pip install aider-install && aider-install",
        api=_CHATS,
        context=8192,
        setup=_aider,
        tools=False,
    ),
    Agent("crush", "Crush", "crush", _NPM + "@charmland/crush", _CHATS, 32768, _crush),
    Agent(
        name="continue",
        title="Continue",
        program="cn",
        install=_NPM + "@continuedev/cli",
        api=_CHATS,
        context=16384,
        setup=_continue,
        aliases=("cn",),
    ),
    Agent("qwen", "Qwen Code", "qwen", _NPM + "@qwen-code/qwen-code", _CHATS, 32768, _qwen),
    Agent(
        name="copilot",
        title="Copilot CLI",
        program="copilot",
        install=_NPM + "@github/copilot",
        api=_RESPONSES,
        context=32768,
        setup=_copilot,
        aliases=("copilot-cli",),
    ),
    Agent("pi", "Pi", "pi", _NPM + "@earendil-works/pi-coding-agent", _CHATS, 8192, _pi),
    Agent("droid", "Droid", "droid", "curl -fsSL https://app.factory.ai/cli | sh", _CHATS, 32768, _droid),
)

BY_NAME = {name: agent for agent in AGENTS for name in (agent.name, *agent.aliases)}
