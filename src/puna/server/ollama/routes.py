"""All routes of Ollama's API."""

from __future__ import annotations

from starlette.routing import Route

from puna.server.jobs.backend import Backend
from puna.server.ollama import blobs, create, embeddings, generate, models, rerank, transfers


def routes(backend: Backend) -> list[Route]:
    modules = (blobs, create, embeddings, generate, models, rerank, transfers)
    return [route for module in modules for route in module.routes(backend)]
