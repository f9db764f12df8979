"""Fractile's own objects and annotations at the API server."""
