"""Looking at a running server: metrics, and what the caches hold."""
