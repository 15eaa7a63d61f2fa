"""`/api/blobs/:digest`: files on their way into the store."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from puna.server.http.replies import empty
from puna.server.http.routing import NOTHING, route
from puna.server.jobs.backend import Backend
from puna.store import normalize_digest


def routes(backend: Backend) -> list[Route]:
    async def blob(request: Request) -> Response:
        """Upload a file under its digest, or ask whether it is there."""
        digest = request.path_params["digest"]
        if request.method == "HEAD":
            # A client that is told of a damaged file would not send a better one.
            whole = await backend.in_store(lambda: backend.store.offer_blob(digest))
            return empty(200 if whole else 404)
        expected = normalize_digest(digest)
        existed = backend.store.has_blob(expected)
        with backend.store.blob_writer() as writer:
            try:
                async for chunk in request.stream():
                    writer.write(chunk)
            except ClientDisconnect:
                return empty(499)  # nobody reads it; the part received is thrown away
            await backend.in_store(lambda: writer.commit(expected))  # which waits for the disk
        return empty(200 if existed else 201)

    return [route("/api/blobs/{digest}", blob, "HEAD", "POST", content_type=NOTHING)]
