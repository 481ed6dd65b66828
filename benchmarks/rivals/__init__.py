"""What the backend is compared with: plain Python-backend models over the same engines."""
