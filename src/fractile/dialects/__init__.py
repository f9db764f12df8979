"""Adapters at the edge, one module per family of resource names.

Pod -> Request on the way in, Placement -> annotations and environment on the way out. Adding a dialect is one module
and one line in ``table.py``; the core knows none of them.
"""
