"""Questions that every program asks through its client, and the report of the results.

A program is called as `python with_NAME.py URL [WAY]`. The last line it prints is JSON: for each column of
the table the result, or the error. ASKED in the environment names the file of questions; demo.json is for
the bundled model.
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
    """Return the class and the message of the error that `call` must raise."""
    try:
        call()
    except Exception as raised:
        return [type(raised).__name__, str(raised)]
    raise AssertionError("no error was raised")


def errors(ask: Callable[[str], Any]) -> dict[str, list[str]]:
    """Return the errors of `ask` for a model that does not exist and one that cannot chat."""
    return {"unknown": error(lambda: ask(UNKNOWN)), "refused": error(lambda: ask(EMBEDDER))}


def report(**columns: Callable[[], Any]) -> None:
    """Print the result of each column. An error in one does not affect the others."""
    print(json.dumps({name: _outcome(column) for name, column in columns.items()}))


def _outcome(column: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"got": column()}
    except Exception:
        return {"failed": traceback.format_exc()}
