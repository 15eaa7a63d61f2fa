"""Answers in a shape that was asked for: what may follow, token by token."""
