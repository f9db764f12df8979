"""Every format that leaves a process, encoded and decoded once, versioned, with a golden file in tests/wire/golden.

Consumes ``model``; every program, dialect and adapter reads and writes through it. Malformed input raises WireError.
"""
