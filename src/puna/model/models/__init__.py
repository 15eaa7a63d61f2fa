"""Architectures, one file each; `puna.architectures` names them."""
