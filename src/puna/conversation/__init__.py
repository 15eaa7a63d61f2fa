"""Conversations with a loaded model, in its process: from messages to prompts, from tokens to answers."""
