"""The commands of `puna cluster`."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from puna.cli import progress, terminal
from puna.cli.manage import table
from puna.cli.server_process import connect
from puna.cluster.credentials import init
from puna.cluster.settings import ClusterSettings

_EVERY_S: Final = 1.0


def make_credentials(addresses: Sequence[str]) -> None:
    """Make what is missing, and say what to do with it."""
    folder = ClusterSettings.from_env().folder
    for path in init(folder, addresses):
        print(path)
    terminal.note(
        f"Copy the folder {folder} to all nodes, but for ca-key.pem, which only makes certificates."
    )


def print_status(*, watch: bool, as_json: bool) -> None:
    """Print the state of the cluster, again and again if it is watched."""
    with connect(start=False) as client:
        while True:
            status = client.get("/api/cluster")
            text = json.dumps(status) if as_json else _status_text(status)
            if not watch:
                print(text)
                return
            print(text if as_json else f"\x1b[2J\x1b[H{text}", flush=True)
            time.sleep(_EVERY_S)


def drain_node(node: str, *, undo: bool) -> None:
    """Drain a node, or give it work again, and return once that is done."""
    with connect(start=False) as client, terminal.spinner("waiting for running answers"):
        client.post("/api/cluster/drain", {"node": node, "undo": undo})
    terminal.note(f"Node {node} {'gets work again' if undo else 'has no work any more; it may leave'}.")


def _status_text(status: Mapping[str, Any]) -> str:
    nodes = [
        (
            node["name"],
            node["address"],
            node["state"],
            str(node["processors"]),
            f"{progress.size(node['available_bytes'])} of {progress.size(node['memory_bytes'])}",
            progress.size(node["free_disk_bytes"]),
        )
        for node in status["nodes"]
    ]
    replicas = [
        (
            model["name"],
            replica["node"],
            replica["state"],
            f"{replica['users']}/{replica['parallel']}",
            replica["kernels"],
            progress.size(replica["memory_bytes"]),
            f"{replica['cached_blocks'] * replica['block_tokens']}",
            f"{replica['prompt_tokens_s']:.0f}",
            f"{replica['decode_tokens_s']:.1f}",
        )
        for model in status["models"]
        for replica in model["replicas"]
    ]
    parts = [table(("NODE", "ADDRESS", "STATE", "PROCESSORS", "FREE MEMORY", "FREE DISK"), nodes)]
    parts += [f"{id[:6]} is not used: {why}" for id, why in status["refused"].items()]
    header = (
        "MODEL", "NODE", "STATE", "REQUESTS", "KERNELS", "MEMORY", "CACHED TOKENS", "PROMPT/S", "TOKENS/S",
    )  # fmt: skip
    parts.append(table(header, replicas) if replicas else "No model is loaded.")
    stages = [
        (
            model["name"],
            stage["node"],
            f"{stage['begin']}-{stage['end'] - 1}",
            progress.size(stage["memory_bytes"]),
            f"{stage['token_us']:.0f}",
            f"{stage['token_bytes']:.0f}",
        )
        for model in status["models"]
        for replica in model["replicas"]
        for stage in replica["stages"]
    ]
    if stages:
        parts.append(table(("MODEL", "NODE", "LAYERS", "MEMORY", "US/TOKEN", "BYTES/TOKEN"), stages))
    return "\n\n".join(parts)
