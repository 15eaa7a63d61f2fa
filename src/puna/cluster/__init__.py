"""Servers on several machines: replicas of models where there is room, found by what they remember."""
