"""Architectures, one file each; `puna.model.registry` maps names to them."""
