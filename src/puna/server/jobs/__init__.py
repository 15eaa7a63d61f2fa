"""What the APIs have in common: checking a request, holding its model's runner, merging answers."""
