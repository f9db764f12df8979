"""Adapters between manifests and the core, one module per family of resource names.

Pod -> Request on the way in, Placement -> annotations and environment on the way out. A new dialect is one module and
one line in ``table.py``; the core depends on no dialect.
"""
