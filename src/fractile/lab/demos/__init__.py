"""The demonstrations of ``fractile demo``, and the pods that they run."""
