"""How cards may be cut: how many slices one has at most, and of which sizes (docs/operate/sharing.md)."""

from fractions import Fraction

import msgspec

from fractile.model.units import MiB

MOST_SLICES = 256  # of one card, whatever the rules say; twice as many pods as a node usually runs
_SHORT = 1024  # MiB by which a slice may be smaller than its fraction: families count memory in up to whole GiB


class SharingRule(msgspec.Struct, frozen=True):
    """What holds for one card. ``max_slices`` 0: as many as fit, up to MOST_SLICES; no ``fractions``: of any size.

    A slice is what one container holds of the card. A whole card is the fraction 1.
    """

    max_slices: int = 0
    fractions: tuple[Fraction, ...] = ()

    def has_place(self, slices: int, more: int) -> bool:
        """Whether so many more may join the slices that are there."""
        return slices + more <= (self.max_slices or MOST_SLICES)

    def admits(self, card: MiB, *, memory: int, cores: int) -> bool:
        """Whether a slice of that size may be cut from a card of that size."""
        return not self.fractions or any(
            0 < memory <= size < memory + _SHORT and cores * f.denominator <= 100 * f.numerator
            for f, size in zip(self.fractions, self.sizes(card), strict=True)
        )

    def sizes(self, card: MiB) -> tuple[int, ...]:
        """The memory of each fraction of a card, in MiB, rounded down."""
        return tuple(card * f.numerator // f.denominator for f in self.fractions)


FREE = SharingRule()


class Partial(msgspec.Struct, frozen=True):
    """A rule of which parts are left to a more general one: None."""

    max_slices: int | None = None
    fractions: tuple[Fraction, ...] | None = None


class ClusterSharing(msgspec.Struct, frozen=True):
    """The rules of a cluster: the default, those of pools of nodes, those of models by a part of their name.

    Of what several say, the model's holds before the pool's, and the pool's before the default. Of models, the first
    whose name is found in the card's, in any case.
    """

    default: Partial = Partial()
    pools: tuple[tuple[str, Partial], ...] = ()
    models: tuple[tuple[str, Partial], ...] = ()

    @property
    def sized(self) -> bool:
        """Whether any rule says of which sizes slices are."""
        named = (p for _, p in (*self.pools, *self.models))
        return any(p.fractions for p in (self.default, *named))

    def rule(self, pool: str, model: str) -> SharingRule:
        """What holds for a card of that model on a node of that pool; "" is no pool."""
        name = model.casefold()
        said = (
            next((p for part, p in self.models if part.casefold() in name), Partial()),
            next((p for known, p in self.pools if known == pool), Partial()),
            self.default,
        )
        return SharingRule(
            max_slices=next((p.max_slices for p in said if p.max_slices is not None), 0),
            fractions=next((p.fractions for p in said if p.fractions is not None), ()),
        )
