"""Anthropic's API: routes, request bodies and replies."""
