"""`puna launch`: other people's coding agents, started with a model of this server."""
