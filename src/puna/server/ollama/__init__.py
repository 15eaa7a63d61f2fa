"""Ollama's API: routes, request bodies and replies."""
