"""Pods that are placed, on the real cluster."""
