"""Better buckets from the traffic that came."""
