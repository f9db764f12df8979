"""How many objects, members of objects and entries of lists a body may become, however few bytes each has in it."""

from fractile.errors import WireError

MOST_OBJECTS = 100_000  # 100 bytes of memory and more each; 5,000 nodes with 20 victims, or a pod of 3 MiB, have fewer
MOST_MEMBERS = 50_000  # counted by colons, those in texts too; the largest pods that people write have some thousands
MOST_ENTRIES = 100_000  # counted by commas, those in texts and between members too


def check_objects(body: bytes) -> None:
    """WireError for more."""
    if body.count(b"{") > MOST_OBJECTS:
        raise WireError(f"the request holds more than {MOST_OBJECTS} objects")


def check_members(body: bytes) -> None:
    """WireError for more."""
    if body.count(b":") > MOST_MEMBERS:
        raise WireError(f"the request holds more than {MOST_MEMBERS} members of objects")
    if body.count(b",") > MOST_ENTRIES:
        raise WireError(f"the request holds more than {MOST_ENTRIES} entries of lists")
