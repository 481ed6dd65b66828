"""Text generation in an executor: the service of one loaded model."""
