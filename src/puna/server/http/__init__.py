"""Plumbing of HTTP that knows nothing of models: who may call, bodies, replies, errors, the log."""
