"""F against its definition, class by class in plain Python, and by cause."""

from hypothesis import given
from hypothesis import strategies as st

from fractile.policy.nodes.fragmentation import causes, forecast, fragments
from fractile.policy.nodes.mix import Mix, mix_of
from fractile.policy.nodes.view import TaskDemand
from tests.policy.nodes.nodes import Node, node, view

SIZES = (110, 230, 470, 810, 1000)
MODELS = ("P100", "T4", "V100")


def fragment(n: Node, ask: TaskDemand) -> int:
    """As FGD's authors define it for one node and one class."""
    total = sum(n.left)
    if ask.gpus == 0 or (ask.models and n.model not in ask.models):
        return total
    if sum(g >= ask.milli for g in n.left) < ask.gpus or n.cpu_left < ask.cpu:
        return total
    return sum(g for g in n.left if g < ask.milli)


@st.composite
def asks(draw: st.DrawFn) -> TaskDemand:
    cpu = draw(st.integers(0, 96)) * 1000
    gpus = draw(st.sampled_from([0, 1, 1, 2, 4]))
    milli = 0 if gpus == 0 else draw(st.sampled_from(SIZES)) if gpus == 1 else 1000
    models = tuple(sorted(draw(st.sets(st.sampled_from(MODELS), max_size=2)))) if gpus else ()
    return TaskDemand(cpu, 0, gpus, milli, models)


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    left = draw(st.lists(st.sampled_from([0, 100, 190, 300, 530, 770, 1000]), max_size=4))
    return node(*left, cpu_left=draw(st.integers(0, 96)) * 1000, model=draw(st.sampled_from(MODELS)))


@given(st.lists(nodes(), min_size=1, max_size=5), st.lists(asks(), min_size=1, max_size=12))
def test_the_columns_agree_with_the_definition(some: list[Node], wanted: list[TaskDemand]) -> None:
    mix, v = mix_of(wanted), view(*some)
    expected = forecast(mix, v.models)

    of_each = [sum(c * fragment(n, a) for a, c in zip(mix.asks, mix.counts, strict=True)) for n in some]
    assert fragments(v.cpu_left, v.gpu_left, v.model, expected).tolist() == of_each


@given(st.lists(nodes(), min_size=1, max_size=5), st.lists(asks(), min_size=1, max_size=12))
def test_the_causes_add_up_to_all_fragments(some: list[Node], wanted: list[TaskDemand]) -> None:
    v = view(*some)
    expected = forecast(mix_of(wanted), v.models)
    c = causes(v, expected)

    found = c.no_gpu_asked + c.wrong_model + c.lack_gpu + c.lack_cpu + c.sharing_remainder
    assert found == int(fragments(v.cpu_left, v.gpu_left, v.model, expected).sum())


def test_each_cause_is_told_apart() -> None:
    v = view(node(1000, 400, cpu_left=8000))

    def cause(ask: TaskDemand) -> tuple[int, ...]:
        c = causes(v, forecast(Mix((ask,), (3,)), v.models))
        return c.no_gpu_asked, c.wrong_model, c.lack_gpu, c.lack_cpu, c.sharing_remainder

    assert cause(TaskDemand(4000, 0)) == (4200, 0, 0, 0, 0)
    assert cause(TaskDemand(4000, 0, 1, 1000, ("V100",))) == (0, 4200, 0, 0, 0)
    assert cause(TaskDemand(4000, 0, 2, 1000)) == (0, 0, 4200, 0, 0)
    assert cause(TaskDemand(9000, 0, 1, 1000)) == (0, 0, 0, 4200, 0)
    assert cause(TaskDemand(4000, 0, 1, 500)) == (0, 0, 0, 0, 1200)


def test_many_nodes_are_worked_off_in_pieces() -> None:
    v = view(*[node(1000, i % 1000) for i in range(5000)])
    expected = forecast(Mix((TaskDemand(1000, 0, 1, 500),), (1,)), v.models)

    assert fragments(v.cpu_left, v.gpu_left, v.model, expected).tolist() == [
        i % 1000 if i % 1000 < 500 else 0 for i in range(5000)
    ]


def test_the_mix_takes_the_commonest_classes_until_they_cover_enough() -> None:
    common, rare, rarest = TaskDemand(1, 0, 1, 500), TaskDemand(3, 0, 1, 500), TaskDemand(2, 0)  # more CPU comes first
    mix = mix_of([common] * 90 + [rare] * 5 + [rarest] * 5)

    assert mix.commonest() == Mix((common, rare), (90, 5))
    assert mix.commonest(96) == mix.commonest(100) == mix


def test_classes_do_not_look_at_memory_nor_at_models_of_pods_without_gpus() -> None:
    assert mix_of([TaskDemand(1, 5), TaskDemand(1, 7), TaskDemand(1, 7, models=("T4",))]) == Mix(
        (TaskDemand(1, 0),), (3,)
    )


def test_a_cluster_that_shows_no_card_yet_has_no_models_and_that_is_no_error() -> None:
    assert forecast(mix_of([]), []).access.shape[0] == 0
    assert forecast(mix_of([TaskDemand(1000, 0, 1, 500)]), []).access.shape == (0, 1)
