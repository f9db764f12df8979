"""One wiring file per program: each builds its objects, connects them and does nothing else. ``term`` and ``node`` are
parts of programs."""
