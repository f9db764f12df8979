"""What is known about future pods, computed once for a cluster and a mix."""

from fractile.policy.nodes.blocks import blocks_of
from fractile.policy.nodes.fragmentation import forecast
from fractile.policy.nodes.mix import Mix
from fractile.policy.nodes.policy import ScoringContext
from fractile.policy.nodes.prices import Prices, prices_of
from fractile.policy.nodes.scarcity import scarcity
from fractile.policy.nodes.stranding import beside
from fractile.policy.nodes.view import View, largest_of


def scoring_of(view: View, mix: Mix, *, leaving: bool = False, prices: Prices | None = None) -> ScoringContext:
    """Everything that policies derive from the mix. F uses the commonest classes, as published; scarcity and prices use
    all: classes that can use only one model are each rare, but many together. ``leaving``: pods leave again."""
    return ScoringContext(
        forecast(mix.commonest(), view.models),
        prices_of(mix) if prices is None else prices,
        scarcity(mix, view),
        largest_of(view),
        blocks=blocks_of(mix, view.models) if leaving else None,
        beside=beside(mix, view),
    )
