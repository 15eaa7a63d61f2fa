"""All architectures, one file each; `puna.model.registry` says which file has which."""
