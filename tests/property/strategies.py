"""Small worlds for the property tests: few cards and small amounts, so that collisions are the rule."""

from hypothesis import strategies as st

from fractile.model.request import ANY, ContainerRequest, PodRequest, Role, Selector
from fractile.policy.cards.state import CardState, NodeState
from tests.builders import by_card, by_memory, by_share, by_slots, card_state, node_state, only, request

_ROLES = (Role.APP, Role.APP, Role.SIDECAR, Role.INIT)
_MEMORY = (1, 2, 3, 4, 5, 5, 6, 6, 7, 8, 9, 14)  # MiB
_COUNTS = (1, 1, 1, 1, 2, 3)  # whole cards
_SHARES = ((1, 10), (2, 30), (5, 50), (3, 80), (8, 20), (2, 99))  # MiB and percent of one card
_SLOTS = ((1, 4, 0), (2, 3, 0), (2, 2, 40), (3, 1, 0))  # cards, and MiB and percent of each
_PERCENTS = ((1, 50, 0), (1, 30, 20), (2, 60, 0))  # cards, and percent of the memory and of the cores of each
_SIZES = (8, 12)  # MiB of a card
_CORES = (100, 100, 100, 60, 20, 1, 0)  # free, in percent
_SELECTORS = (ANY, ANY, ANY, Selector(models=("A",)), Selector(not_models=("a",)))

# One integer per container and per card: a quarter of the time that nested draws take.
_KINDS = len(_MEMORY) + len(_COUNTS) + len(_SHARES) + len(_SLOTS) + len(_PERCENTS)
_container = st.integers(0, len(_ROLES) * _KINDS - 1)
_card = st.integers(0, len(_SIZES) * 18 * len(_CORES) * 2 - 1)


def pod_requests(*, most: int = 3) -> st.SearchStrategy[PodRequest]:
    """A pod of 1 to ``most`` containers in kubelet's order: apps last."""
    containers = st.lists(_container, min_size=1, max_size=most)
    return st.builds(_pod, containers, st.sampled_from(_SELECTORS))


def node_states(*, most: int = 4) -> st.SearchStrategy[NodeState]:
    """A node of 0 to ``most`` cards of two sizes, idle, used, full, or in debt because they shrank."""
    return st.lists(_card, max_size=most).map(_node)


def _pod(codes: list[int], selector: Selector) -> PodRequest:
    containers = [only(selector, _container_of(code, f"c{i}")) for i, code in enumerate(codes)]
    first = [c for c in containers if c.role is not Role.APP]
    return request(*first, *(c for c in containers if c.role is Role.APP))


def _container_of(code: int, name: str) -> ContainerRequest:
    kind, role = divmod(code, len(_ROLES))
    if kind < len(_MEMORY):
        return by_memory(_MEMORY[kind], name, role=_ROLES[role])
    kind -= len(_MEMORY)
    if kind < len(_COUNTS):
        return by_card(_COUNTS[kind], name, role=_ROLES[role])
    kind -= len(_COUNTS)
    if kind < len(_SHARES):
        return by_share(*_SHARES[kind], name, role=_ROLES[role])
    kind -= len(_SHARES)
    if kind < len(_SLOTS):
        return by_slots(*_SLOTS[kind], name, role=_ROLES[role])
    count, percent, cores = _PERCENTS[kind - len(_SLOTS)]
    return by_slots(count, 0, cores, name, percent=percent, role=_ROLES[role])


def _node(codes: list[int]) -> NodeState:
    return NodeState(node_state("n").node, tuple(_card_of(code, i) for i, code in enumerate(codes)))


def _card_of(code: int, index: int) -> CardState:
    code, model = divmod(code, 2)
    code, cores = divmod(code, len(_CORES))
    memory = _SIZES[code % 2]
    free = min(memory, code // 2 - 2)  # more often empty than anything else
    used = free < memory
    return card_state(
        index,
        free,
        node="n",
        memory=memory,
        cores=_CORES[cores] if used else 100,
        coreless=used and _CORES[cores] > 0 and model == 1,  # never beside those who were promised everything
        model="AB"[model],
    )
