"""Models from elsewhere: what registries have is pulled into the store."""
