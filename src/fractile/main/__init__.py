"""One wiring file per program: each builds its objects, connects them and nothing else. ``term`` is a part of one."""
