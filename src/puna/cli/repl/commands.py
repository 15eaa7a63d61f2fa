"""The slash commands of the interactive prompt."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any, Protocol

from puna.cli import manage, terminal
from puna.cli.manage import print_models
from puna.cli.repl.session import Session
from puna.cli.settings import parse_values
from puna.errors import MCPServerError, PunaError, RequestError, ServerError, UnavailableError
from puna.options import THINK_LEVELS
from puna.unknown import did_you_mean

COMMANDS = """\
Available Commands:
  /set            Set session variables
  /show           Show model information
  /load <model>   Load a session or model
  /save <model>   Save your current session
  /clear          Clear session context
  /mcp            Show the MCP servers and their tools
  /mcp <server>   Connect an MCP server, whose tools the model may call
  /list           List models
  /bye            Exit
  /?, /help       Help for a command
  /? shortcuts    Help for keyboard shortcuts

Use \"\"\" to begin a multi-line message.
"""

SET = """\
Available Commands:
  /set parameter <name> <value>   Set a parameter
  /set system <text>              Set system message
  /set history                    Enable history
  /set nohistory                  Disable history
  /set wordwrap                   Enable wordwrap
  /set nowordwrap                 Disable wordwrap
  /set format json                Enable JSON mode
  /set noformat                   Disable formatting
  /set verbose                    Show timings after an answer
  /set quiet                      Do not show timings
  /set think [high|medium|low]    Enable thinking
  /set nothink                    Disable thinking
"""

PARAMETERS = """\
Available Parameters:
  /set parameter seed <int>                 Random number seed
  /set parameter num_predict <int>          Maximum number of tokens to generate (-1: ten contexts)
  /set parameter top_k <int>                Sample from the k most likely tokens
  /set parameter top_p <float>              Sample from the most likely tokens with total probability p
  /set parameter min_p <float>              Drop tokens less likely than this fraction of the top one
  /set parameter typical_p <float>          Sample from the most typical tokens with total probability p
  /set parameter num_ctx <int>              Context length in tokens
  /set parameter num_keep <int>             Tokens kept from the start when the context is full
  /set parameter temperature <float>        Randomness; 0 always picks the most likely token
  /set parameter repeat_penalty <float>     How strongly to avoid repetition
  /set parameter repeat_last_n <int>        How far back to look for repetition
  /set parameter presence_penalty <float>   Penalty for tokens that already occurred
  /set parameter frequency_penalty <float>  Penalty for tokens, times how often they occurred
  /set parameter num_thread <int>           Number of threads (0: all cores)
  /set parameter replicas <int>,<int>       In a cluster: at least and at most so many replicas
  /set parameter stop <text> <text> ...     Stop at any of these texts
"""

SHOW = """\
Available Commands:
  /show info         Show details for this model
  /show license      Show model license
  /show modelfile    Show Modelfile for this model
  /show parameters   Show parameters for this model
  /show system       Show system message
  /show template     Show prompt template
"""

SHORTCUTS = """\
Available keyboard shortcuts:
  Ctrl + a      Move to the beginning of the line (Home)
  Ctrl + e      Move to the end of the line (End)
   Alt + b      Move back one word
   Alt + f      Move forward one word
  Ctrl + k      Delete to the end of the line
  Ctrl + u      Delete to the beginning of the line
  Ctrl + w      Delete the word before the cursor
  Ctrl + r      Search the history (Enter takes the match)
   Tab          Complete a command, a model's name or a path
  Ctrl + l      Clear the screen
  Ctrl + g      Write the message in an editor
   Alt + Enter  Start a new line
  Ctrl + c      Stop the answer
  Ctrl + d      Exit
"""

TOPICS = {"set": SET, "show": SHOW, "shortcuts": SHORTCUTS, "shortcut": SHORTCUTS}


#: A line that starts with the path of a media file is a message, not a command.
_MEDIA = re.compile(r"^/\S+\.(jpe?g|png|webp|wav)\b", re.IGNORECASE)


class History(Protocol):
    """The history of typed lines."""

    enabled: bool


def is_command(line: str) -> bool:
    return line.startswith("/") and not _MEDIA.match(line)


def run_command(session: Session, line: str, history: History) -> bool:
    """Run a command. Return False if it ends the chat. Raises PunaError only when the server fails."""
    for prefix, command in _COMMANDS:
        if line.startswith(prefix):
            if command is not None:
                command(session, line, history)
            return command is not None
    print(f"Unknown command '{line.split()[0]}'. Type /? for help")
    return True


def _list(session: Session, line: str, _history: History) -> None:
    words = line.split()
    print_models(session.client, words[1] if len(words) > 1 else "")


def _load(session: Session, line: str, _history: History) -> None:
    name = _one_name(line, "/load")
    if name is None:
        return
    print(f"Loading model '{name}'")
    try:
        session.switch(name)
    except ServerError as error:
        if error.status_code == 404:
            print(f"Couldn't find model '{name}'{did_you_mean(name, session.client.model_names())}")
        else:
            print(f"error: {error}")
    except RequestError as error:
        print(f"error: {error}")


def _save(session: Session, line: str, _history: History) -> None:
    name = _one_name(line, "/save")
    if name is None:
        return
    try:
        session.save(name)
    except ServerError as error:
        print(f"error: {error}")
    else:
        print(f"Created new model '{name}'")


def _mcp(session: Session, line: str, _history: History) -> None:
    words = line.split()[1:]
    if len(words) == 2 and words[0] == "off":
        known = session.tools is not None and session.tools.disconnect(words[1])
        print(f"Disconnected '{words[1]}'" if known else f"'{words[1]}' is not connected")
    elif len(words) > 1:
        print("Usage:\n  /mcp [<server>]\n  /mcp off <server>")
    elif not words:
        print(session.tool_overview())
    else:
        try:
            session.connect(words[0])
        except (MCPServerError, UnavailableError) as error:
            print(f"error: {terminal.printable(str(error))}")
        else:
            print(f"Connected '{words[0]}'")


def _one_name(line: str, command: str) -> str | None:
    words = line.split()
    if len(words) == 2:
        return words[1]
    print(f"Usage:\n  {command} <modelname>")
    return None


def _clear(session: Session, _line: str, _history: History) -> None:
    session.clear()
    print("Cleared session context")


def _help(_session: Session, line: str, _history: History) -> None:
    words = line.split()
    topic = words[1].removeprefix("/") if len(words) > 1 else ""
    terminal.note(TOPICS.get(topic, COMMANDS))


def _set(session: Session, line: str, history: History) -> None:
    words = line.split()
    if len(words) < 2:
        terminal.note(SET)
        return
    settings, name, values = session.settings, words[1], words[2:]
    if name == "parameter":
        _set_parameter(session, line)
    elif name == "system":
        _set_system(session, line)
    elif name in ("history", "nohistory"):
        history.enabled = name == "history"
    elif name in ("wordwrap", "nowordwrap"):
        settings.word_wrap = name == "wordwrap"
        print(f"Set '{name}' mode.")
    elif name in ("verbose", "quiet"):
        settings.verbose = name == "verbose"
        print(f"Set '{name}' mode.")
    elif name == "format":
        if values == ["json"]:
            settings.format = "json"
            print("Set format to 'json' mode.")
        else:
            print("Invalid or missing format. For 'json' mode use '/set format json'")
    elif name == "noformat":
        settings.format = None
        print("Disabled format.")
    elif name in ("think", "nothink"):
        _set_think(session, name, values)
    else:
        print(f"Unknown command '/set {name}'. Type /? for help")


def _set_parameter(session: Session, line: str) -> None:
    words = _words(line.split(maxsplit=2)[2]) if len(line.split()) > 2 else []
    if len(words) < 2:
        terminal.note(PARAMETERS)
        return
    name, values = words[0], words[1:]
    try:
        session.settings.options[name] = parse_values(name, values)
    except PunaError as error:
        print(f'Couldn\'t set parameter: "{error}"')
        return
    print(f"Set parameter '{name}' to '{', '.join(values)}'")


def _words(text: str) -> list[str]:
    """Split like a shell, so that a stop text may contain spaces; unbalanced quotes split at whitespace."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _set_system(session: Session, line: str) -> None:
    parts = line.split(maxsplit=2)
    if len(parts) < 3:
        print("Usage:\n  /set system <text>")
        return
    session.set_system(parts[2])
    print("Set system message.")


def _set_think(session: Session, name: str, values: list[str]) -> None:
    if name == "think" and values and values[0] not in THINK_LEVELS:
        print(f"Unknown level '{values[0]}': must be one of {', '.join(THINK_LEVELS)}")
        return
    if name == "think" and not session.can_think:
        print(f"Couldn't set think: model '{session.settings.model}' does not support thinking")
        return
    session.settings.think = (values[0] if values else True) if name == "think" else False
    level = f" to '{values[0]}'" if name == "think" and values else ""
    print(f"Set '{name}' mode{level}.")


def _show(session: Session, line: str, _history: History) -> None:
    words = line.split()
    part = words[1] if len(words) > 1 else ""
    printer = _PARTS.get(part)
    if printer is not None:
        printer(session)
    elif part:
        print(f"Unknown command '/show {part}'. Type /? for help")
    else:
        terminal.note(SHOW)


def _show_info(session: Session) -> None:
    print(manage.overview(session.shown), end="")


def _show_text(field: str, missing: str) -> Callable[[Session], None]:
    def printer(session: Session) -> None:
        text = session.shown.get(field)
        print(text or f"No {missing} was specified for this model.")

    return printer


def _show_system(session: Session) -> None:
    if session.settings.system:
        print(session.settings.system)
    else:
        _show_text("system", "system message")(session)


def _show_parameters(session: Session) -> None:
    model = manage.parameter_rows(session.shown.get("parameters") or "")
    user = [(name, _shown_value(value)) for name, value in session.settings.options.items()]
    for title, rows in (("Model defined parameters:", model), ("User defined parameters:", user)):
        print(title)
        print("".join(f"  {row[0]:<30} {row[1]}\n" for row in rows) or "  none\n")


def _shown_value(value: Any) -> str:
    return ", ".join(map(repr, value)) if isinstance(value, list) else str(value)


_PARTS: dict[str, Callable[[Session], None]] = {
    "info": _show_info,
    "license": _show_text("license", "license"),
    "modelfile": _show_text("modelfile", "Modelfile"),
    "parameters": _show_parameters,
    "system": _show_system,
    "template": _show_text("template", "prompt template"),
}

#: Matched by prefix, in this order; None ends the chat.
_COMMANDS: tuple[tuple[str, Callable[[Session, str, History], None] | None], ...] = (
    ("/list", _list),
    ("/load", _load),
    ("/save", _save),
    ("/clear", _clear),
    ("/mcp", _mcp),
    ("/set", _set),
    ("/show", _show),
    ("/help", _help),
    ("/?", _help),
    ("/exit", None),
    ("/bye", None),
)
