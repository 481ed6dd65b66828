"""Device scratch memory: the pool, its leases and its plan."""
