"""What a pod's annotations say about how its cards are chosen: read once per pod, not per container.

A tenant may write 256 KiB of annotations, and as many containers as a megabyte holds. So a dialect parses the texts
once, and refuses any that is longer than LONGEST.
"""

from collections.abc import Iterator, Mapping

import msgspec

from fractile.model.refusal import Code, Refusal
from fractile.model.request import ANY, Selector

LONGEST = 12 * 1024  # characters of one annotation: 256 UUIDs with a comma and a space after each are 10,752
NAMED = 256  # models or cards that one annotation may name


class Wishes(msgspec.Struct, frozen=True):
    """``limit`` is the annotation's text; its valid values depend on the container."""

    selector: Selector = ANY
    policy: str = ""
    node_policy: str = ""
    limit: str | None = None


NONE = Wishes()


def overlong(annotations: Mapping[str, str], names: tuple[str, ...]) -> Refusal | None:
    """The refusal when one of the named annotations is too long; None when all are short enough."""
    for name in names:
        length = len(annotations.get(name, ""))
        if length > LONGEST:
            return Refusal(Code.MALFORMED, f"the annotation {name} has {length:,} characters; the most is {LONGEST:,}")
    return None


def words(text: str) -> Iterator[str]:
    """The non-empty parts of a comma-separated list."""
    return (word for part in text.split(",") if (word := part.strip()))
