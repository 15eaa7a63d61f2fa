"""Chats as files: exports of ours and as Markdown, and what other programs export, read within limits."""
