"""The types of a pod's path: units, Card, Request, Placement, Refusal. No I/O; every other package uses them."""
