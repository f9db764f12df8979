"""The demonstrations of ``fractile demo``, and their pods."""
