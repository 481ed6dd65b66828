"""Executors inside this process, and sessions with them."""

from fixtures.executors import bench, executor, session

__all__ = ["bench", "executor", "session"]
