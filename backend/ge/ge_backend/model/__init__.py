"""What a model's folder says: its configuration, its files, its tensors."""
