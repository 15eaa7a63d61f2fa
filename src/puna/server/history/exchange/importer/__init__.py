"""A process that reads the chats a client wants to import, within limits."""
