"""From messages to prompt text: chat templates in Jinja and in Go's template language, and back."""
