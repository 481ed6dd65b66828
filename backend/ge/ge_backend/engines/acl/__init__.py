"""Offline models through pyACL."""
