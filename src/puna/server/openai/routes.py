"""All routes of OpenAI's API."""

from __future__ import annotations

from starlette.routing import Route

from puna.server.jobs.backend import Service
from puna.server.openai import completions, embeddings
from puna.server.openai.responses import routes as responses


def routes(backend: Service) -> list[Route]:
    modules = (completions, responses, embeddings)
    return [route for module in modules for route in module.routes(backend)]
