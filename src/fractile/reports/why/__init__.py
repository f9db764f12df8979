"""Why a pod waits, or what became of it (``fractile why``): read, judged, put in order."""
