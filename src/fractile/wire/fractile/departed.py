"""What processes of deleted pods still hold of a card, according to its agent, with the known names.

The control plane does not allocate it (``extended_resource.withheld``), so every report of what is free must count it.
"""

from collections.abc import Sequence

import msgspec

from fractile.errors import WireError
from fractile.model.placement import Charge
from fractile.model.units import MiB, Percent
from fractile.wire.fractile.extended_resource import BoundTo, ExtendedResource, withheld
from fractile.wire.quantity import parse

PHASE = "Deleted"  # phase of such a pod, in reports
_MIB = 2**20
_NAMED = 64  # containers that a status names; further ones are left out


class DepartedContainer(msgspec.Struct, frozen=True):
    """A container of a deleted pod. Names that the agent does not report are ""."""

    namespace: str
    pod: str
    container: str
    memory: MiB
    cores: Percent


def departed(resource: ExtendedResource) -> tuple[DepartedContainer, ...]:
    """The containers of deleted pods; together they hold what is withheld. WireError for invalid amounts."""
    charge = withheld(resource)
    if charge is None:
        return ()
    return _named(resource.status.bound_to or (), charge) or (
        DepartedContainer("", "", "", charge.memory, charge.cores),
    )


def label(namespace: str, pod: str) -> str:
    """The name in reports: "(deleted) team-a/trainer"."""
    return f"(deleted) {namespace}/{pod}" if pod else "(deleted)"


def taken(index: int, node: str, held: DepartedContainer) -> str:
    """The note on why a part of a card that no pod holds is not free."""
    who = label(held.namespace, held.pod)
    return (
        f"counted as taken: card {index} of {node}: {held.memory} MiB by {who}; it is free when the processes of that "
        "pod have ended"
    )


def _named(bound: Sequence[BoundTo], charge: Charge) -> tuple[DepartedContainer, ...]:
    """The last entries of the list, where agents write them; empty when they do not add up to the charge."""
    if not charge.slices <= len(bound) < _NAMED:
        return ()
    try:
        found = tuple(
            DepartedContainer(
                b.namespace, b.pod, b.container, MiB(int(parse(b.memory or "0")) // _MIB), Percent(b.cores)
            )
            for b in bound[-charge.slices :]
        )
    except WireError:
        return ()
    same = sum(d.memory for d in found) == charge.memory and min(sum(d.cores for d in found), 100) == charge.cores
    return found if same and all(d.pod for d in found) else ()
