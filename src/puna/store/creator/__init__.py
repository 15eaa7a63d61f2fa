"""The process that creates one model out of files that have to be converted, joined or quantised."""
