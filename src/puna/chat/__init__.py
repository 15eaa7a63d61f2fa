"""Chat templates, which write a conversation as a prompt, and parsers, which read answers."""
