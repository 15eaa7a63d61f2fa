"""Chat templates, in Jinja and in Go's template language: from messages to prompt text."""
