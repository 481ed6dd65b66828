"""Text generation in a stub: requests, answers, and the client of the service."""
