"""Kubernetes objects and messages, as far as Fractile reads and writes them."""
