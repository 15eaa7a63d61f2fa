"""Uploads while others want answers."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from puna.server.jobs.service import Service
from puna.server.metrics import Metrics
from puna.server.ollama.create import routes
from puna.server.settings import Settings
from puna.store import Store
from puna.store.blobs import BlobWriter
from tests.store.store_files import sha256
from tests.waiting import PATIENCE_S


def test_others_are_served_while_an_upload_reaches_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, commit = threading.Event(), BlobWriter.commit

    def commit_once_another_was_served(writer: BlobWriter, expected: str | None = None) -> str:
        assert served.wait(PATIENCE_S / 10)
        return commit(writer, expected)

    monkeypatch.setattr(BlobWriter, "commit", commit_once_another_was_served)
    store, nobody = Store(tmp_path), Any

    async def upload() -> int:
        backend = Service(store, nobody, Settings(), Metrics())  # type: ignore[arg-type]
        transport = httpx.ASGITransport(Starlette(routes=routes(backend)))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            answer = asyncio.create_task(http.post(f"/api/blobs/{sha256(b'data')}", content=b"data"))
            assert (await http.head(f"/api/blobs/{sha256(b'else')}")).status_code == 404
            served.set()
            return (await answer).status_code

    assert asyncio.run(upload()) == 201
    assert store.has_blob(sha256(b"data"))
