"""The work of every API: checking requests, holding their models' runners, merging answers."""
