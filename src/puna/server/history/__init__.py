"""Chats that the page keeps: one SQLite file, every chat owned by the key that made it."""
