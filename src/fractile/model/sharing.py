"""How cards may be cut: the most slices of a card, and their sizes (docs/operate/sharing.md)."""

from fractions import Fraction

import msgspec

from fractile.model.units import MiB

MOST_SLICES = 256  # of one card, whatever the rules; twice as many as the pods that a node usually runs
_SHORT = 1024  # MiB by which a slice may be smaller than its fraction: families count memory in up to whole GiB


class SharingRule(msgspec.Struct, frozen=True):
    """The rule for one card. ``max_slices`` 0: as many as fit, up to MOST_SLICES; no ``fractions``: any size.

    A slice is what one container holds of the card. A whole card is the fraction 1.
    """

    max_slices: int = 0
    fractions: tuple[Fraction, ...] = ()

    def has_place(self, slices: int, more: int) -> bool:
        """Whether ``more`` slices may join the present ones."""
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
    """A rule whose None parts are left to a more general rule."""

    max_slices: int | None = None
    fractions: tuple[Fraction, ...] | None = None


class ClusterSharing(msgspec.Struct, frozen=True):
    """The rules of a cluster: the default, those of node pools, and those of models, by a part of the model's name.

    The model's rule takes precedence over the pool's, and the pool's over the default. Of several models, the first
    whose name occurs in the card's model counts, in any case.
    """

    default: Partial = Partial()
    pools: tuple[tuple[str, Partial], ...] = ()
    models: tuple[tuple[str, Partial], ...] = ()

    @property
    def sized(self) -> bool:
        """Whether any rule restricts the sizes of slices."""
        named = (p for _, p in (*self.pools, *self.models))
        return any(p.fractions for p in (self.default, *named))

    def rule(self, pool: str, model: str) -> SharingRule:
        """The rule for a card of that model on a node of that pool; "" is no pool."""
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
