"""Write the manual page and the completions that wheels install: `python tools/shell_files.py`.

They are made of the command line's own help, and kept in share/; a test tells when they are out of date.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import typer.main

from puna import __version__
from puna.cli.app import app
from puna.cli.completion import Shell, script
from puna.cli.help import VARIABLES

SHARE: Final = Path(__file__).resolve().parents[1] / "share"
_MARKUP: Final = re.compile(r"\[/?[a-z ]*\]")


def manual() -> str:
    """Return the manual page, in the macros of man(7)."""
    command: Any = typer.main.get_command(app)
    return "\n".join([
        f'.TH PUNA 1 "" "Puna {__version__}" "User Commands"',
        ".SH NAME",
        r"puna \- run open language models on your own machine",
        ".SH SYNOPSIS",
        r".B puna \fICOMMAND\fR [\fIARGUMENT\fR...]",
        ".SH DESCRIPTION",
        _text(command.help),
        ".SH COMMANDS",
        *_commands(command, "puna"),
        ".SH ENVIRONMENT",
        *(line for name, text in VARIABLES.items() for line in (".TP", f".B {name}", _text(text))),
        "",
    ])  # fmt: skip


def _commands(group: Any, name: str) -> Iterator[str]:
    for each, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _commands(command, f"{name} {each}")
            continue
        yield f".SS {name} {each}"
        yield _text(command.help)
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.hidden:
                value = "" if parameter.is_flag else f" \\fI{_text(parameter.metavar or 'VALUE')}\\fR"
                names = ", ".join(f"\\fB{_text(option)}\\fR" for option in parameter.opts)
                yield from (".TP", f"{names}{value}", _text(parameter.help))


def _text(text: str | None) -> str:
    """Return a text as man(7) takes it, in one paragraph for each of its own."""
    paragraphs = re.split(r"\n\s*\n", _MARKUP.sub("", text or "").strip())
    lines = [" ".join(each.split()).replace("\\", r"\e").replace("-", r"\-") for each in paragraphs]
    return "\n.PP\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in lines)


def files() -> dict[Path, str]:
    """Return the files, by their places in the prefix `share`."""
    return {
        Path("man/man1/puna.1"): manual(),
        Path("bash-completion/completions/puna"): script(Shell.BASH) + "\n",
        Path("zsh/site-functions/_puna"): script(Shell.ZSH) + "\n",
        Path("fish/vendor_completions.d/puna.fish"): script(Shell.FISH) + "\n",
    }


if __name__ == "__main__":
    for place, text in files().items():
        (SHARE / place).parent.mkdir(parents=True, exist_ok=True)
        (SHARE / place).write_text(text, "utf-8")
