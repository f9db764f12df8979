"""Bounds on the objects, object members and list entries of a request body, however few bytes each takes."""

from fractile.errors import WireError

MOST_OBJECTS = 100_000  # at least 100 bytes of memory each; 5,000 nodes with 20 victims, or a 3 MiB pod, have fewer
MOST_MEMBERS = 50_000  # counted by colons, those in strings too; the largest hand-written pods have thousands
MOST_ENTRIES = 100_000  # counted by commas, those in strings and between members too


def check_objects(body: bytes) -> None:
    """Raises WireError for more than MOST_OBJECTS."""
    if body.count(b"{") > MOST_OBJECTS:
        raise WireError(f"the request holds more than {MOST_OBJECTS} objects")


def check_members(body: bytes) -> None:
    """Raises WireError for more than MOST_MEMBERS or MOST_ENTRIES."""
    if body.count(b":") > MOST_MEMBERS:
        raise WireError(f"the request holds more than {MOST_MEMBERS} members of objects")
    if body.count(b",") > MOST_ENTRIES:
        raise WireError(f"the request holds more than {MOST_ENTRIES} entries of lists")
