"""Play recorded sessions of agents against a server, and write docs/agents.json and docs/agents.md's table.

    make bench-agents

Each session is played twice: its requests as agents send them, and the prompts that a server without Puna's
rules for agents would make of them. There the billing line stays, all system messages move to the front, and
tools come in the order of the request.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

from agents_report import REPORT, Result, Run, line
from pages import ROOT
from report import load_warning, processor

#: Sizes of the model: random weights, as only the length of prompts matters.
SIZES = {"hidden": 384, "feed_forward": 1024, "layers": 6, "heads": 6, "kv_heads": 2}
CONTEXT = 32768
THREADS = 2


def main() -> None:
    sys.path.insert(0, str(ROOT))
    sessions = importlib.import_module("tests.agents.sessions")
    if warning := load_warning():
        print(warning)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for agent in sessions.AGENTS:
            results.append(_measured(agent(), Path(folder)))
            print(line(results[-1]))
    model = f"a Llama of {SIZES['layers']} layers and {SIZES['hidden']} values, with random weights"
    REPORT.write(Run(model, THREADS, processor(), results))


def _measured(session: Any, folder: Path) -> Result:
    """Play a session on a fresh server, with and without the rules."""
    playing = importlib.import_module("tests.agents.playing")
    servers = importlib.import_module("tests.e2e.servers")
    gguf, tokenizers = importlib.import_module("puna.gguf"), importlib.import_module("puna.tokenizer.load")
    path = _model(folder)
    tokenizer = tokenizers.tokenizer_from_gguf(gguf.open_gguf(path))
    costs = []
    settings = {"PUNA_CONTEXT_LENGTH": str(CONTEXT), "PUNA_NUM_THREADS": str(THREADS)}
    for ruled in (True, False):
        models = Path(tempfile.mkdtemp(dir=folder))
        with servers.running(models, **settings) as server:
            servers.add_model(server, "tiny", path)
            server.client.generate("tiny", "warm", options={"num_predict": 1})
            if ruled:
                costs.append(playing.play(session, server.http, "tiny", tokenizer.encode))
            else:
                costs.append(playing.play_unruled(session, server.http, "tiny"))
    ours, plain = costs
    return Result(
        agent=session.agent,
        api=session.api,
        requests=len(ours),
        prompts=sum(cost.prompt for cost in ours),
        least=sum(cost.prompt - cost.seen for cost in ours),
        evaluated=sum(cost.evaluated for cost in ours),
        unruled=sum(cost.evaluated for cost in plain),
        seconds=[cost.seconds for cost in ours],
        unruled_seconds=[cost.seconds for cost in plain],
    )


def _model(folder: Path) -> Path:
    llama = importlib.import_module("tests.tiny.llama")
    sessions = importlib.import_module("tests.agents.sessions")
    template = importlib.import_module("tests.agents.conversation").TEMPLATE
    path = folder / "tiny.gguf"
    if not path.exists():
        words = tuple(f" {word}" for word in sessions.WORDS)
        llama.tiny_llama_gguf(
            path, llama.TinyLlama(context=CONTEXT, words=words, **SIZES), chat_template=template
        )
    return path


if __name__ == "__main__":
    main()
