"""Default classes: their names, and what becomes of them."""

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.classes.book import DEFAULT_ANNOTATION, ClassBook, digest
from fractile.classes.defaults import checked, name_of, wanted
from fractile.errors import SetupError
from fractile.kube import paths
from fractile.wire.fractile.resource_class import MOST_VALUES, ClassMeta, ResourceClass, decode
from tests.classes.class_plane import Controllers, controllers
from tests.classes.class_world import class_object, device, gpu, labels, node

TEMPLATE = "{vendor}.{model}"
LINGER = 31


@pytest.mark.parametrize(
    ("model", "name"),
    [
        pytest.param("NVIDIA Tesla K80", "nvidia.tesla.k80", id="with the vendor"),
        pytest.param("Tesla V100", "nvidia.tesla.v100", id="without"),
        pytest.param("Tesla-V100-SXM2-16GB", "nvidia.tesla-v100-sxm2-16gb", id="hyphens"),
        pytest.param("  A100__80 GB / PCIe -- ", "nvidia.a100.80.gb.pcie", id="anything"),
        pytest.param("Ünïcode ☃ 7", "nvidia.n.code.7", id="other letters"),
        pytest.param("***", "nvidia", id="nothing left of the model"),
    ],
)
def test_a_model_becomes_a_name(model: str, name: str) -> None:
    assert name_of(TEMPLATE, gpu(model=model)) == name


def test_long_names_stay_two() -> None:
    first, second = (name_of(TEMPLATE, gpu(model="x" * 80 + end)) for end in "ab")
    assert first != second
    assert len(first) == len(second) == 63


@given(st.text(max_size=100))
def test_every_name_is_one_that_the_api_server_takes(model: str) -> None:
    name = name_of("{model}", gpu(model=model))
    if name:
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", name)
        assert len(name) <= 63


@given(st.lists(st.tuples(st.sampled_from(["A 1", "a.1", "a-1", "B"]), st.sampled_from(["gpu", "hca", "fpga"]))))
def test_every_model_has_one_class_of_its_type_and_no_order_matters(pairs: list[tuple[str, str]]) -> None:
    cards = [gpu(model=m) if t == "gpu" else device(type=t, model=m) for m, t in pairs]
    found = wanted("{model}", cards)
    assert found == wanted("{model}", list(reversed(cards)))
    assert {(m, w.device_type) for w in found.values() for m in w.models} == set(pairs)
    assert sum(len(w.models) for w in found.values()) == len(set(pairs))
    for wish in found.values():
        assert decode(ResourceClass(metadata=ClassMeta(name=wish.name), spec=wish.spec())) == wish.meaning


def test_a_card_and_another_device_do_not_share_a_class() -> None:
    found = wanted("{model}", [device(type="fpga", model="X1"), gpu(model="x1"), device(type="asic", model="x1")])
    assert {name: w.device_type for name, w in found.items()} == {"x1": "gpu", "x1.fpga": "fpga", "x1.asic": "asic"}


def test_more_models_than_a_condition_takes_are_cut() -> None:
    many = [gpu(model="a" + "." * i) for i in range(100)]
    assert len(wanted("{model}", many)["a"].models) == MOST_VALUES


@pytest.mark.parametrize("template", ["", "{vendor}", "{model", "{model}-{serial}", "{0}", "{model.__class__}"])
def test_a_template_of_which_no_name_can_come_is_refused(template: str) -> None:
    with pytest.raises(SetupError, match="--default-classes"):
        checked(template)


# ── their life ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def begin(one: Controllers) -> None:
    one.make_node(node("n1"))
    one.card(gpu("n1", 0, model="NVIDIA Tesla K80"))
    one.card(gpu("n1", 1, model="Tesla V100"))
    await one.settle()


async def test_every_model_gets_a_class_that_works_like_any_other() -> None:
    async with controllers(template=TEMPLATE) as (one,):
        await begin(one)
        assert one.classes() == ["nvidia.tesla.k80", "nvidia.tesla.v100"]
        assert one.status("nvidia.tesla.k80")["devices"]["total"] == 1
        assert one.units("n1") == {"nvidia.tesla.k80": "1", "nvidia.tesla.v100": "1"}
        assert await one.settle() == 0


async def test_without_a_template_there_are_none() -> None:
    async with controllers() as (one,):
        await begin(one)
        assert one.classes() == []


async def test_a_persons_class_of_that_name_is_left_alone() -> None:
    async with controllers(template=TEMPLATE) as (one,):
        one.make_class(class_object("nvidia.tesla.k80", labels(model="something else")))
        await begin(one)
        spec = one.server.get(paths.resource_class("nvidia.tesla.k80"))["spec"]
        assert spec["selector"]["matchLabels"] == {"model": "something else"}
        one.server.delete(paths.extended_resource("gpu-n1-0"))
        await one.settle()
        one.clock.now += LINGER
        await one.settle()
        assert "nvidia.tesla.k80" in one.classes()


async def test_models_of_one_name_share_a_class_that_follows_them() -> None:
    async with controllers(template=TEMPLATE) as (one,):
        await begin(one)
        one.card(gpu("n1", 2, model="Tesla K80"))
        await one.settle()
        assert one.status("nvidia.tesla.k80")["devices"]["total"] == 2
        one.server.delete(paths.extended_resource("gpu-n1-0"))
        await one.settle()
        assert one.status("nvidia.tesla.k80")["devices"]["total"] == 1
        assert await one.settle() == 0


async def test_a_class_goes_with_its_last_device_after_a_while() -> None:
    async with controllers(template=TEMPLATE) as (one,):
        await begin(one)
        one.server.delete(paths.extended_resource("gpu-n1-0"))
        await one.settle()
        assert "nvidia.tesla.k80" in one.classes()
        one.clock.now += LINGER
        await one.settle()
        assert one.classes() == ["nvidia.tesla.v100"]


async def test_a_class_whose_device_returns_in_time_stays() -> None:
    async with controllers(template=TEMPLATE) as (one,):
        await begin(one)
        one.server.delete(paths.extended_resource("gpu-n1-0"))
        await one.settle()
        one.clock.now += LINGER / 2
        one.card(gpu("n1", 0, model="NVIDIA Tesla K80"))
        await one.settle()
        one.clock.now += LINGER
        await one.settle()
        assert "nvidia.tesla.k80" in one.classes()


async def test_a_sick_device_is_still_there() -> None:
    async with controllers(template=TEMPLATE) as (one,):
        await begin(one)
        one.card(gpu("n1", 0, model="NVIDIA Tesla K80"), phase="Unhealthy")
        await one.settle()
        one.clock.now += LINGER
        await one.settle()
        assert "nvidia.tesla.k80" in one.classes()


async def test_a_class_that_somebody_changed_is_theirs() -> None:
    async with controllers(template=TEMPLATE) as (one,):
        await begin(one)
        one.server.merge(paths.resource_class("nvidia.tesla.k80"), {"spec": {"memory": "2Gi"}})
        await one.settle()
        assert one.server.get(paths.resource_class("nvidia.tesla.k80"))["spec"]["memory"] == "2Gi"
        one.server.delete(paths.extended_resource("gpu-n1-0"))
        await one.settle()
        one.clock.now += LINGER
        await one.settle()
        assert "nvidia.tesla.k80" in one.classes()


async def test_a_class_that_is_changed_while_it_is_about_to_go_stays() -> None:
    async with controllers(template=TEMPLATE) as (one,):
        await begin(one)
        one.server.delete(paths.extended_resource("gpu-n1-0"))
        await one.settle()
        one.clock.now += LINGER
        one.see()
        one.server.merge(paths.resource_class("nvidia.tesla.k80"), {"spec": {"memory": "2Gi"}})  # not seen yet
        one.control.look()
        await one.control.defaults.once()
        assert "nvidia.tesla.k80" in one.classes()


async def test_a_deleted_default_class_is_made_again() -> None:
    async with controllers(template=TEMPLATE) as (one,):
        await begin(one)
        one.server.delete(paths.resource_class("nvidia.tesla.k80"))
        await one.settle()
        assert "nvidia.tesla.k80" in one.classes()


async def test_two_replicas_make_each_class_once() -> None:
    async with controllers(2, template=TEMPLATE) as (first, second):
        first.make_node(node("n1"))
        first.card(gpu("n1", 0))
        first.see()
        second.see()
        await first.act()
        await second.act()
        assert first.classes() == ["nvidia.tesla.v100"]
        assert sum(w.startswith("POST") for w in first.server.writes()) <= 2
        await first.settle()
        await second.settle()
        assert await first.settle() == 0
        marked = first.server.get(paths.resource_class("nvidia.tesla.v100"))["metadata"]["annotations"]
        assert DEFAULT_ANNOTATION in marked


def test_a_class_is_still_ours_as_the_api_server_writes_it_and_no_longer_when_anything_is_changed() -> None:
    spec = wanted("{vendor}.{model}", [gpu(model="Tesla K80")])["nvidia.tesla.k80"].spec()
    said = {"deviceType": "gpu", "count": 1, **msgspec.to_builtins(spec)}

    def ours(spec: dict[str, Any]) -> bool:
        meta = {"name": "nvidia.tesla.k80", "annotations": {DEFAULT_ANNOTATION: digest(made)}}
        book = ClassBook()
        book.put(msgspec.json.decode(msgspec.json.encode({"metadata": meta, "spec": spec}), type=ResourceClass))
        return book.entries["nvidia.tesla.k80"].ours

    made = spec
    assert ours(said)
    changes: list[dict[str, Any]] = [
        {"count": 2},
        {"memory": "1Gi"},
        {"cores": 5},
        {"deviceType": "hca"},
        {"selector": {}},
    ]
    assert not any(ours(said | change) for change in changes)
