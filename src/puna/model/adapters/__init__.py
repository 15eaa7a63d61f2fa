"""Adapters (LoRA): reading their files, and applying them to a model's linears."""
