"""Hollow nodes: a simulated kubelet that runs no containers but manages devices like a real node."""
