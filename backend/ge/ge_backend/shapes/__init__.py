"""Which shapes there are, what they cost, and what traffic has had: pure, without a device."""
