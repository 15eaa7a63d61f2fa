"""Speculative decoding: sources of drafts, and the decision how many tokens to draft."""
