"""The process that owns one loaded model, and the server's side of its socket (`puna.protocol`)."""
