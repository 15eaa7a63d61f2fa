"""The page: its files, the chats it keeps, answers that outlive it, and a live view of the engine."""
