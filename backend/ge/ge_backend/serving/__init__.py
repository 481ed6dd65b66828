"""Opening a model to serve it: its sessions, its buckets, its steps."""
