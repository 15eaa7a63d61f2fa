"""HTTP without knowledge of models: connections, callers, bodies, replies, errors, logs."""
