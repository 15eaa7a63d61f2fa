"""Talking with a loaded model, where it runs: messages become prompts, tokens text and thinking."""
