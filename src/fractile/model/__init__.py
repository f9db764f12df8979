"""The nouns of the path: units, Card, Request, Placement, Refusal. No I/O; every other package speaks in these."""
