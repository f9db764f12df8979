"""How many objects a body may become, however few bytes each has in it."""

from fractile.errors import WireError

MOST_OBJECTS = 100_000  # 100 bytes of memory and more each; 5,000 nodes with 20 victims, or a pod of 3 MiB, have fewer


def check_objects(body: bytes) -> None:
    """WireError for more."""
    if body.count(b"{") > MOST_OBJECTS:
        raise WireError(f"the request holds more than {MOST_OBJECTS} objects")
