"""`puna debug cache`: the contents of the caches of loaded models, drawn as in docs/kvcache.md."""

from __future__ import annotations

import json
from itertools import groupby
from urllib.parse import quote

from puna.cli import humanize, terminal
from puna.errors import RequestError
from puna.kvcache.contents import Contents, picture

_INDENT = "    "


def print_caches(model: str | None, *, as_json: bool) -> None:
    """Print the caches of `model`, or of all loaded models, or the server's reply about them as JSON.

    Raises RequestError when none is loaded.
    """
    import msgspec

    from puna.cli.server_process import connect

    with connect(start=False) as client:
        path = "/api/debug/cache" + (f"?model={quote(model)}" if model else "")
        models = client.get(path)["models"]
    if not models:
        raise RequestError("no model is loaded; load one first with 'puna run MODEL'")
    if as_json:
        print(json.dumps(models))
        return
    for shown in models:
        print(shown["name"])
        for contents in msgspec.convert(shown["caches"], list[Contents]):
            print(f"\n{describe(contents)}\n")
            lines = picture(contents, contents.used, terminal.width() - len(_INDENT))
            print("".join(f"{_INDENT}{line}\n" for line in lines), end="")


def describe(contents: Contents) -> str:
    """`causal, layers 0-3, 5: 12 of 4096 cells in use, 1.5 MB of memory`."""
    what = "states" if contents.kind == "recurrent" else "cells"
    return (
        f"{contents.kind}, {_layers(contents.layers)}: {contents.held} of {contents.capacity} {what} in use, "
        f"{humanize.size(contents.provided_bytes)} of memory"
    )


def _layers(numbers: list[int]) -> str:
    # In a run of consecutive numbers, number minus index is constant.
    runs = groupby(enumerate(sorted(numbers)), key=lambda entry: entry[1] - entry[0])
    ranges = [[number for _, number in run] for _, run in runs]
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in ranges]
    return ("layer " if len(numbers) == 1 else "layers ") + ", ".join(texts)
