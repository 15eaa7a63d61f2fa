"""`/api/blobs/:digest`: files on their way into the store."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from puna.server.http.replies import empty
from puna.server.http.routing import NOTHING, route
from puna.server.jobs.backend import Backend


def routes(backend: Backend) -> list[Route]:
    async def blob(request: Request) -> Response:
        """Upload a file under its digest, or ask whether it is there."""
        digest = request.path_params["digest"]
        if request.method == "HEAD":
            # A client that is told of a damaged file would not send a better one.
            whole = await backend.in_store(lambda: backend.store.offer_blob(digest))
            return empty(200 if whole else 404)
        try:
            created = await backend.store.put_blob_async(digest, request.stream())
        except ClientDisconnect:
            return empty(499)  # nobody reads it; the part received is thrown away
        return empty(201 if created else 200)

    return [route("/api/blobs/{digest}", blob, "HEAD", "POST", content_type=NOTHING)]
