"""Sums over the bytes of a region. Pure.

The library's sum for a card still includes what dead processes held, until another process of the container reclaims
it, for example one that starts in the same slot or is short of memory. Readers subtract it: a dead process holds
nothing.
"""

from collections.abc import Container, Sequence

from fractile.region.layout import ACCOUNT, REGION_CARD, SLOT, UNIT_BYTES

_USED_SHIFT = 30  # native/region/schema.toml: region_card.used
_CHARGED_SHIFT = 19  # account.charged
_STATE = SLOT.fields["state"].offset  # 0: free


def on_card(data: bytes, at: int) -> int:
    """Bytes of all processes, dead ones too, on the card at offset ``at``."""
    return (REGION_CARD.get(data, at, "used") >> _USED_SHIFT) * UNIT_BYTES


def in_account(data: bytes, at: int) -> int:
    """Bytes of one account."""
    return (ACCOUNT.get(data, at, "charged") >> _CHARGED_SHIFT) * UNIT_BYTES


def of_slot(data: bytes, at: int, cards: int) -> tuple[int, ...]:
    """Bytes of the process whose slot is at offset ``at``, by card."""
    return tuple(in_account(data, at + SLOT.size + card * ACCOUNT.size) for card in range(cards))


def of_the_dead(slots: bytes, cards: int, live: Container[int]) -> tuple[int, ...]:
    """Bytes by card of the processes that are not ``live``; ``slots`` begins with the first slot."""
    size = SLOT.size + cards * ACCOUNT.size
    states = slots[: len(slots) // size * size][_STATE::size]
    dead = [of_slot(slots, n * size, cards) for n, state in enumerate(states) if state and n not in live]
    return tuple(sum(held[card] for held in dead) for card in range(cards))


def of_the_living(used: int, dead: int, live: Sequence[int]) -> int:
    """``used`` without the ``dead``. The figures may be of two moments, so at least the sum that the ``live``
    report."""
    return max(used - dead, min(used, sum(live)))
