"""Adapters (LoRA): reading them from files, and putting them beside a model's weights."""
