"""Small worlds for the property tests: few cards and small amounts, so that collisions are the rule."""

from hypothesis import strategies as st

from fractile.model.request import ContainerRequest, PodRequest, Role
from fractile.policy.state import CardState, NodeState
from tests.builders import by_card, by_memory, card_state, node_state, request

_ROLES = (Role.APP, Role.APP, Role.SIDECAR, Role.INIT)
_MEMORY = (1, 2, 3, 4, 5, 5, 6, 6, 7, 8, 9, 14)  # MiB
_COUNTS = (1, 1, 1, 1, 2, 3)  # whole cards
_SIZES = (8, 12)  # MiB of a card

# One integer per container and per card: a quarter of the time that nested draws take.
_container = st.integers(0, len(_ROLES) * (len(_MEMORY) + len(_COUNTS)) - 1)
_card = st.integers(0, len(_SIZES) * 18 - 1)


def pod_requests(*, most: int = 3) -> st.SearchStrategy[PodRequest]:
    """A pod of 1 to ``most`` containers in kubelet's order: apps last."""
    return st.lists(_container, min_size=1, max_size=most).map(_pod)


def node_states(*, most: int = 4) -> st.SearchStrategy[NodeState]:
    """A node of 0 to ``most`` cards of two sizes, idle, used, full, or in debt because they shrank."""
    return st.lists(_card, max_size=most).map(_node)


def _pod(codes: list[int]) -> PodRequest:
    containers = [_container_of(code, f"c{i}") for i, code in enumerate(codes)]
    first = [c for c in containers if c.role is not Role.APP]
    return request(*first, *(c for c in containers if c.role is Role.APP))


def _container_of(code: int, name: str) -> ContainerRequest:
    kind, role = divmod(code, len(_ROLES))
    if kind < len(_MEMORY):
        return by_memory(_MEMORY[kind], name, role=_ROLES[role])
    return by_card(_COUNTS[kind - len(_MEMORY)], name, role=_ROLES[role])


def _node(codes: list[int]) -> NodeState:
    return NodeState(node_state("n").node, tuple(_card_of(code, i) for i, code in enumerate(codes)))


def _card_of(code: int, index: int) -> CardState:
    memory = _SIZES[code % 2]
    free = min(memory, code // 2 - 2)  # more often empty than anything else
    return card_state(index, free, node="n", memory=memory)
