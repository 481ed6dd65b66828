"""Systems, loads and turns: what every comparison is built on."""
