"""The routes of llama.cpp's server and of vLLM."""

from __future__ import annotations

from starlette.routing import Route

from puna.server.jobs.service import Service
from puna.server.llamaserver import completions, scores, state, tokens


def routes(backend: Service) -> list[Route]:
    modules = (completions, tokens, state, scores)
    return [route for module in modules for route in module.routes(backend)]
