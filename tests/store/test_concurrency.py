"""Several processes writing to one store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from puna.store import Store
from tests.store.store_files import minimal_gguf, sha256
from tests.waiting import PATIENCE_S

_WORKER = """
import random, sys
from pathlib import Path
from puna.errors import ModelNotFoundError, RequestError
from puna.store import ModelSpec, Store

store, digest, seed = Store(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
data = Path(sys.argv[4]).read_bytes()
choose = random.Random(seed)
for step in range(40):
    name = f"m{choose.randrange(3)}"
    try:
        if choose.random() < 0.6:
            store.put_blob(digest, [data])
            store.create(name, ModelSpec(files={"a.gguf": digest}, system=f"text {choose.randrange(3)}"))
        elif choose.random() < 0.5:
            store.delete(name)
        else:
            store.copy(name, f"m{choose.randrange(3)}")
    except (ModelNotFoundError, RequestError):
        pass  # another process was faster: it deleted the model, or the blob before a manifest named it
    for model in store.list():
        pass
"""


@pytest.mark.slow
def test_concurrent_creation_and_deletion_leave_only_complete_models(tmp_path: Path) -> None:
    data = minimal_gguf()
    source = tmp_path / "source.gguf"
    source.write_bytes(data)
    root = tmp_path / "models"
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, str(root), sha256(data), str(seed), str(source)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in range(3)
    ]
    for worker in workers:
        _, errors = worker.communicate(timeout=PATIENCE_S)
        assert worker.returncode == 0, errors
    store = Store(root)
    named: set[str] = set()
    for model in store.list():
        if model.bundled:
            continue
        assert (model.system or "").startswith("text ")
        assert model.runnable_path().read_bytes() == data
        named |= {digest.replace(":", "-") for digest in model.manifest.digests()}
    found = {path.name for path in (root / "blobs").iterdir()}
    # Besides named blobs, only one that was uploaded but not yet used in a model may remain.
    assert named <= found <= named | {sha256(data).replace(":", "-")}
