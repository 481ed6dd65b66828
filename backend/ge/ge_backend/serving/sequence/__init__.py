"""Sequences: who lives in which slot, and what their steps carry."""
