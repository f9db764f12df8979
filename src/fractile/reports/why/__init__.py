"""Why a pod waits, or what became of it (``fractile why``): reads the objects, judges them, and builds the report."""
