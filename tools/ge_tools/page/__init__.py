"""The page of `ge-backend report`: a recording, what it says in numbers, and its pictures."""
