"""The command line: `ge-backend …`, one file per command."""
