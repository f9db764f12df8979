"""Encode and decode every format that leaves a process: once, versioned, with a golden file in tests/wire/golden.

Uses ``model``; every program, dialect and adapter reads and writes through this package. Malformed input raises
WireError.
"""
