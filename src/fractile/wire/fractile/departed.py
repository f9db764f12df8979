"""What processes of pods that are gone still hold of a card, by its agent's word, with the names that are known.

The control plane gives none of it away (``extended_resource.withheld``), so whoever says what is free has to count it.
"""

from collections.abc import Sequence

import msgspec

from fractile.errors import WireError
from fractile.model.placement import Charge
from fractile.model.units import MiB, Percent
from fractile.wire.fractile.extended_resource import BoundTo, ExtendedResource, withheld
from fractile.wire.quantity import parse

PHASE = "Deleted"  # of such a pod, in reports
_MIB = 2**20
_NAMED = 64  # containers that a status names; of more the last ones are missing


class DepartedContainer(msgspec.Struct, frozen=True):
    """A container of a pod that was deleted. All names are "" where the agent does not say them."""

    namespace: str
    pod: str
    container: str
    memory: MiB
    cores: Percent


def departed(resource: ExtendedResource) -> tuple[DepartedContainer, ...]:
    """Together as much as is withheld of the card. WireError when the amounts make no sense."""
    charge = withheld(resource)
    if charge is None:
        return ()
    return _named(resource.status.bound_to or (), charge) or (
        DepartedContainer("", "", "", charge.memory, charge.cores),
    )


def label(namespace: str, pod: str) -> str:
    """How a person reads it: "(deleted) team-a/trainer"."""
    return f"(deleted) {namespace}/{pod}" if pod else "(deleted)"


def taken(index: int, node: str, held: DepartedContainer) -> str:
    """The note that says why a part of a card, which no pod holds, is not free."""
    who = label(held.namespace, held.pod)
    return (
        f"counted as taken: card {index} of {node}: {held.memory} MiB by {who}; it is free when the processes of that "
        "pod have ended"
    )


def _named(bound: Sequence[BoundTo], charge: Charge) -> tuple[DepartedContainer, ...]:
    """The last ones of the list, which is how agents write it; none when they do not add up to the charge."""
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
