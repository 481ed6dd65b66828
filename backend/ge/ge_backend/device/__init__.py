"""Devices and engines: the only place that imports a vendor library."""
