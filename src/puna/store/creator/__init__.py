"""The process that creates one model from files that must be converted, joined or quantised."""
