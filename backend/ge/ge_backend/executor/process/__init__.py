"""An executor as a process: how it is found, started and ended."""
