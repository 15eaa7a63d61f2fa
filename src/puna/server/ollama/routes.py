"""All routes of Ollama's API."""

from __future__ import annotations

from starlette.routing import Route

from puna.server.jobs.backend import Service
from puna.server.ollama import create, embeddings, generate, models, transfers


def routes(backend: Service) -> list[Route]:
    modules = (create, embeddings, generate, models, transfers)
    return [route for module in modules for route in module.routes(backend)]
