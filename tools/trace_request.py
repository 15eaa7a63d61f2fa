"""Trace one warm streaming chat request through the server, the runner and the renderer.

    python tools/trace_request.py [MODEL]

Prints each process's source files in the order in which the request first enters them, with the number of
functions called in each, and the total numbers of files and functions. A function counts if any thread enters
it between the request and the end of its answer.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

SOURCE = Path(__file__).parents[1] / "src" / "puna"
OFF, ON, DUMP = b"\0", b"\1", b"\2"

#: The interpreter of all processes. It records functions entered while the first byte of a shared file is 1,
#: and writes them to a file when it becomes 2.
LAUNCHER = """\
#!{python} -I
import mmap, os, runpy, sys, threading, time
with open({flag!r}, "r+b") as file:
    flag = mmap.mmap(file.fileno(), 1)
called = {{}}
def note(frame, event, argument):
    if event == "call" and flag[0] == 1:
        code = frame.f_code
        called.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno), len(called))
def dump():
    while flag[0] != 2:
        time.sleep(0.05)
    with open(os.path.join({folder!r}, str(os.getpid())), "w") as file:
        file.writelines("%s\\t%s\\n" % key[:2] for key in list(called))
words = sys.argv[1:]
while words and words[0] in ("-I", "-S"):
    words.pop(0)
sys.executable = {launcher!r}
threading.Thread(target=dump, daemon=True).start()
threading.setprofile(note)
sys.setprofile(note)
if words[0] == "-m":
    sys.argv = words[1:]
    sys.path.insert(0, os.getcwd())
    runpy.run_module(words[1], run_name="__main__", alter_sys=True)
else:
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")
"""


@contextmanager
def tracing(folder: Path) -> Iterator[tuple[Path, mmap.mmap]]:
    """Write an interpreter that traces into `folder`; yield its path and the byte that controls it."""
    flag, launcher = folder / "flag", folder / "python"
    flag.write_bytes(OFF)
    launcher.write_text(
        LAUNCHER.format(python=sys.executable, flag=str(flag), folder=str(folder), launcher=str(launcher))
    )
    launcher.chmod(0o755)
    with flag.open("r+b") as file, mmap.mmap(file.fileno(), 1) as switch:
        yield launcher, switch


def trace(model: str, folder: Path) -> dict[str, list[tuple[str, str]]]:
    """Return (file, function) pairs for each process, in the order of their first calls."""
    with tracing(folder) as (python, switch):
        environment = os.environ | {"PUNA_HOST": "127.0.0.1:0", "PUNA_MODELS": str(folder / "models")}
        server = subprocess.Popen(
            [python, "-m", "puna", "serve"], env=environment, stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout is not None
            url = f"http://{server.stdout.readline().split()[2]}"
            for prompt in ("Tell me a story.", "Tell me another story."):
                ask(url, model, prompt)
            switch[:] = ON
            ask(url, model, "Tell me a story about a fox.")
            switch[:] = DUMP
            time.sleep(1)
        finally:
            server.terminate()
            server.wait()
    found = {}
    for path in sorted(folder.glob("[0-9]*"), key=lambda path: int(path.name)):
        lines = [line.split("\t") for line in path.read_text().splitlines()]
        calls = [(name, function) for name, function in lines if Path(name).is_relative_to(SOURCE)]
        if calls:
            found[path.name] = [(str(Path(name).relative_to(SOURCE)), function) for name, function in calls]
    return found


def ask(url: str, model: str, prompt: str) -> None:
    """Stream an answer of 16 tokens over OpenAI's API."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "max_tokens": 16,
        "temperature": 0,
    }
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=120) as reply:
        reply.raise_for_status()
        pieces = [json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: {")]
    assert any(choice["delta"].get("content") for piece in pieces for choice in piece["choices"])


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "demo"
    with TemporaryDirectory() as folder:
        found = trace(model, Path(folder))
    files, functions = set(), set()
    for number, calls in enumerate(found.values()):
        by_file: dict[str, set[str]] = defaultdict(set)
        for name, function in calls:
            by_file[name].add(function)
        print(f"process {number + 1}: {len(by_file)} files")
        for name, called in by_file.items():
            print(f"  {name:<44} {len(called):>4}")
        files |= set(by_file)
        functions |= set(calls)
    print(f"in all {len(files)} files and {len(functions)} functions")


if __name__ == "__main__":
    main()
