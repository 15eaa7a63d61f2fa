"""What every program asks its client for, and how it tells what it got.

A program is called as `python with_NAME.py URL [WAY]`. The last line it prints is JSON: an answer for each
column of the table, or the error it ended with. ASKED in the environment names what is asked for: demo.json
is for the bundled model.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

ASKED: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / os.environ.get("ASKED", "asked.json")).read_text()
)
URL = sys.argv[1]
WAY = sys.argv[2] if len(sys.argv) > 2 else ""
MODEL, EMBEDDER, UNKNOWN = ASKED["model"], ASKED["embedder"], ASKED["unknown"]


if MODEL == "demo":

    class Trip(BaseModel):
        """The schema that is asked for, as a class."""

        name: str
        age: int

    def get_weather(city: str) -> str:
        """Tell the weather in a city.

        Args:
            city: its name
        """
        return str(ASKED["tool_result"])

else:

    class Trip(BaseModel):  # type: ignore[no-redef]
        """The schema that is asked for, as a class."""

        city: Literal["Lima"]
        days: Literal[2]

    def get_weather(city: str, days: int) -> str:  # type: ignore[misc]
        """The weather of a city.

        Args:
            city: its name
            days: how many
        """
        return str(ASKED["tool_result"])


def error(call: Callable[[], Any]) -> list[str]:
    """The kind and the words of the error that `call` must raise."""
    try:
        call()
    except Exception as raised:
        return [type(raised).__name__, str(raised)]
    raise AssertionError("no error came")


def errors(ask: Callable[[str], Any]) -> dict[str, list[str]]:
    """What `ask` makes of a model that does not exist, and of one that cannot answer."""
    return {"unknown": error(lambda: ask(UNKNOWN)), "refused": error(lambda: ask(EMBEDDER))}


def report(**columns: Callable[[], Any]) -> None:
    """Print what each column gives. An error of one leaves the others alone."""
    print(json.dumps({name: _outcome(column) for name, column in columns.items()}))


def _outcome(column: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"got": column()}
    except Exception:
        return {"failed": traceback.format_exc()}
