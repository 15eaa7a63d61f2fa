"""Entry point of the command line, which turns errors into a message and an exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache

import typer
from typer.main import get_command

from puna.cli import terminal
from puna.cli.app import app
from puna.cli.help import SECTIONS, usage
from puna.errors import PunaError
from puna.unknown import known_as

# httpx imports its own command line if it can, which is a third of the startup time of most commands.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

#: Builds the parser of all commands, which takes tens of milliseconds, once.
parser = cache(get_command)

#: The parser's errors, found by inheritance because their module depends on typer's version.
_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
_PARSER_ERROR: type[Exception] = typer.BadParameter.__mro__[2]


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command in `arguments`. Return 0, 1 after an error, 130 after Ctrl-C, or 141 after SIGPIPE."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    terminal.set_up()
    try:
        status = parser(app).main(words, prog_name="puna", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except PunaError as error:
        return _fail(str(error))
    except _PARSER_ERROR as error:
        return _fail(_usage_text(error))
    except BrokenPipeError:
        # The reader of our output is gone; without this, Python's flush at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        return _fail(f"{error.strerror or error}{place}")


def _fail(message: str) -> int:
    sys.stdout.flush()
    print(f"Error: {message}", file=sys.stderr)
    return 1


def _usage_text(error: Exception) -> str:
    """Return what is wrong with the arguments, the usage, and where to find help."""
    format_message = getattr(error, "format_message", None)
    message = str(format_message() if format_message else error).removesuffix(".")
    context = getattr(error, "ctx", None)
    kind = type(error).__name__
    if kind == "NoSuchOption":
        message = _unknown_flag(error)
    elif message.startswith("No such command"):
        message = _unknown_command(message.split("'")[1])
    elif kind == "MissingParameter":
        message = f"missing argument {getattr(getattr(error, 'param', None), 'metavar', '') or ''}".rstrip()
    if isinstance(error, _USAGE_ERROR) and context is not None:
        message = f"{message}\nUsage: {usage(context)}"
        message += f"\nRun '{context.command_path} --help' for more."
    return message


def _unknown_flag(error: Exception) -> str:
    name = getattr(error, "option_name", "")
    return f"unknown flag: {name}{_did_you_mean(name, _flags(error))}"


def _flags(error: Exception) -> list[str]:
    """Return the long options of the command that rejected one."""
    context = getattr(error, "ctx", None)
    parameters = context.command.get_params(context) if context is not None else ()
    return [flag for parameter in parameters for flag in parameter.opts if flag.startswith("--")]


def _unknown_command(name: str) -> str:
    commands = [command for names in SECTIONS.values() for command in names]
    return f'unknown command "{name}" for "puna"{_did_you_mean(name, commands)}'


def _did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return a question naming the names that start with `name`, else those that resemble it."""
    from difflib import get_close_matches

    other_name = known_as(name.lstrip("-").replace("-", "_")).replace("_", "-")
    near = [other for other in known if other.startswith(name) or other == f"--{other_name}"]
    near = near or get_close_matches(name, known)
    return f" (did you mean {' or '.join(near)}?)" if near else ""
