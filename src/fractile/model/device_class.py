"""A class of devices: a named selector over device properties, and how much of each device a pod gets."""

from enum import StrEnum

import msgspec

from fractile.model.card import GPU
from fractile.model.units import MiB, Percent


class Operator(StrEnum):
    """How a property is compared. The last four compare with one value, a quantity."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"
    GE = "Ge"
    LE = "Le"

    @property
    def ordered(self) -> bool:
        return self in _ORDERED


_ORDERED = frozenset({Operator.GT, Operator.LT, Operator.GE, Operator.LE})


class PropertyRequirement(msgspec.Struct, frozen=True):
    """One condition on the property ``key``."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()


class DeviceClass(msgspec.Struct, frozen=True):
    """All of ``requirements`` must hold. One unit of the class is ``count`` devices: whole ones, or ``memory`` MiB and
    ``cores`` percent of each GPU."""

    name: str
    device_type: str = GPU
    requirements: tuple[PropertyRequirement, ...] = ()
    memory: MiB = MiB(0)
    cores: Percent = Percent(0)
    count: int = 1

    @property
    def shared(self) -> bool:
        """Whether a unit is a part of a card, not a whole card."""
        return bool(self.memory or self.cores)
