"""All routes of the server's own API."""

from __future__ import annotations

from starlette.routing import Route

from puna.server.inspection import caches, description, metrics_page
from puna.server.jobs.backend import Backend


def routes(backend: Backend) -> list[Route]:
    modules = (caches, metrics_page, description)
    return [route for module in modules for route in module.routes(backend)]
