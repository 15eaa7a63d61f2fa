"""The interactive prompt of `puna run`."""
