"""The ConfigMap of quotas and the labels of nodes, as they change."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from fractile.kube.events import EventKind, ObjectRef
from fractile.kube.reflector import Gone
from fractile.ledger.usage import LedgerUsage
from fractile.model.quota import NamespaceQuota, NodePlace, Quota, QuotaLimit
from fractile.model.units import NodeName
from fractile.watch.quotas import AWAY, QuotaHandlers
from fractile.wire.files.quota_file import KEY
from fractile.wire.kubernetes.objects import ConfigMap, ObjectMeta

SOURCE = "fractile-system/fractile-quota"
TWO_M40 = {"a": NamespaceQuota(limits=(QuotaLimit("M40", 200),))}


@dataclass
class Timer:
    seconds: float
    call: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class World:
    """Quota handlers, with all that they told."""

    def __init__(self, *, others: bool = True) -> None:
        self.usage = LedgerUsage()
        self.told: list[tuple[str, str, str]] = []  # object, reason, type
        self.said: list[str] = []
        self.eased = 0
        self.timers: list[Timer] = []
        self.kept: list[str | None] = []
        self.handlers = QuotaHandlers(
            self.usage,
            SOURCE,
            others=others,
            tell=self.tell,
            eased=self.ease,
            keep=lambda: self.kept.append(self.handlers.text),
            later=self.later,
        )

    def later(self, seconds: float, call: Callable[[], None]) -> "Timer":
        self.timers.append(Timer(seconds, call))
        return self.timers[-1]

    def tell(self, about: ObjectRef, reason: str, message: str, kind: EventKind) -> None:
        self.told.append((f"{about.kind} {about.namespace}/{about.name} {about.uid}", reason, kind))
        self.said.append(message)

    def ease(self) -> None:
        self.eased += 1

    def write(self, text: str | None, **more: str) -> None:
        meta = ObjectMeta(name="fractile-quota", namespace="fractile-system", uid="u1")
        data = dict(more) if text is None else {KEY: text, **more}
        self.handlers.changed(ConfigMap(metadata=meta, data=data or None))

    def delete(self, *, away: bool = True) -> None:
        """``away``: and nobody has made it again in time."""
        self.handlers.gone(Gone("fractile-system", "fractile-quota", "u1"))
        if away:
            self.pass_time()

    def pass_time(self) -> None:
        for timer in self.timers:
            if not timer.cancelled:
                timer.call()
        self.timers.clear()


OBJECT = "ConfigMap fractile-system/fractile-quota u1"
GOOD = '{"a": {"quota": {"M40": 2}}}'


def test_without_a_config_map_nobody_is_limited_unless_the_option_says_so() -> None:
    assert World().usage.quota.limits_nobody
    assert World(others=False).usage.quota == Quota(others=False)


def test_a_config_map_is_in_force_at_once_and_says_so() -> None:
    world = World()
    world.write(GOOD)
    assert world.usage.quota == Quota(TWO_M40)
    assert world.told == [(OBJECT, "QuotaRead", "Normal")]
    assert world.eased == 1


def test_what_says_the_same_again_changes_nothing_and_tells_nobody() -> None:
    world = World()
    world.write(GOOD)
    world.write(f" {GOOD} ")
    assert (len(world.told), world.eased) == (1, 1)


@pytest.mark.parametrize("text", ["{", '{"a": {"quota": {"M40": -1}}}', '{"b": {}, "a": {"pool": 3}}', None])
def test_a_malformed_one_is_refused_as_a_whole_and_the_last_good_one_kept(text: str | None) -> None:
    world = World()
    world.write(GOOD)
    world.write(text)
    assert world.usage.quota == Quota(TWO_M40)
    assert world.told[1:] == [(OBJECT, "QuotaIgnored", "Warning")]
    assert world.said[1].startswith(f"quota ConfigMap {SOURCE}: ")
    assert world.said[1].endswith("; the quotas stay as they were")
    assert world.handlers.problem
    world.write(GOOD)
    assert world.handlers.problem == ""
    assert world.told[2:] == [(OBJECT, "QuotaRead", "Normal")]
    assert world.eased == 1


@pytest.mark.parametrize("others", [True, False])
@pytest.mark.parametrize("before", ["never", "deleted"])
def test_the_first_one_ever_with_a_mistake_changes_nothing_where_none_is_known_to_have_been_there(
    before: str, others: bool
) -> None:
    world = World(others=others)
    if before == "deleted":
        world.write(GOOD)
    world.handlers.synced()
    if before == "deleted":
        world.delete()
    world.write("{")
    world.write("{{")
    assert world.usage.quota == Quota(others=others)
    assert world.said[-1].endswith("; it is treated as missing, as before")
    assert world.handlers.problem
    assert world.handlers.text is None, "what was kept stays as it is"
    world.write(GOOD)
    assert world.usage.quota == Quota(TWO_M40, others=others)
    world.write("{")
    assert world.said[-1].endswith("; the quotas stay as they were")


def test_while_nobody_has_known_the_quotas_since_the_start_nobody_is_given_a_card() -> None:
    world = World()
    world.write("{")
    assert world.usage.quota.problem.endswith("; until that is corrected, no pod is given a card")
    assert world.said[0].endswith("; no pod is given a card until that is corrected")
    world.write(GOOD)
    assert world.usage.quota == Quota(TWO_M40)
    assert world.eased == 2


@pytest.mark.parametrize("first", ["kept", "malformed"])
def test_a_program_that_starts_with_a_malformed_one_goes_by_the_quotas_that_were_kept(first: str) -> None:
    world = World(others=False)
    if first == "kept":
        world.handlers.recall(TWO_M40)
        assert world.usage.quota == Quota(others=False), "they are in force only if nothing better is there"
    world.write("{")
    if first == "malformed":
        world.handlers.recall(TWO_M40)
    world.handlers.synced()
    assert world.usage.quota == Quota(TWO_M40, others=False)
    assert world.told[0] == (OBJECT, "QuotaIgnored", "Warning")
    assert (first == "kept") == world.said[0].endswith("; the quotas stay as they were")
    assert world.kept == [], "what is kept stays as it is"
    world.handlers.recall({})
    assert world.usage.quota == Quota(TWO_M40, others=False), "once only"
    world.write('{"b": {}}')
    assert world.usage.quota == Quota({"b": NamespaceQuota()}, others=False)
    assert world.kept == ['{"b": {}}']


def test_what_makes_sense_is_to_be_kept_as_it_is_written_and_nothing_when_there_is_none() -> None:
    world = World()
    world.handlers.recall(TWO_M40)
    world.handlers.synced()  # none is there
    world.write("{")
    assert world.usage.quota.limits_nobody, "it was deleted since the quotas were kept"
    world.write(f" {GOOD}")
    world.write(f" {GOOD}")
    world.write("{")
    world.delete()
    assert world.kept == ["", f" {GOOD}", ""]


def test_a_config_map_that_is_replaced_by_deleting_it_limits_all_the_time() -> None:
    world = World()
    world.write(GOOD)
    before, eased = world.usage.quota, world.eased
    world.delete(away=False)
    assert [t.seconds for t in world.timers] == [AWAY]
    assert world.usage.quota == before, "it is away for a moment only"
    world.write(GOOD)
    world.pass_time()
    assert (world.usage.quota, world.eased) == (before, eased)


def test_a_second_deletion_begins_the_time_anew() -> None:
    world = World()
    world.write(GOOD)
    world.delete(away=False)
    world.delete(away=False)
    assert [t.cancelled for t in world.timers] == [True, False]


def test_a_deleted_config_map_limits_nobody() -> None:
    world = World()
    world.write(GOOD)
    world.delete()
    assert world.usage.quota.limits_nobody
    assert world.eased == 2
    world.write("{")
    assert world.usage.quota.limits_nobody, "what was in force stays in force"


def test_namespaces_that_are_not_named_stay_denied_whatever_the_config_map_says() -> None:
    world = World(others=False)
    world.write(GOOD)
    assert world.usage.quota == Quota(TWO_M40, others=False)
    world.delete()
    assert world.usage.quota == Quota(others=False)


@pytest.mark.parametrize(
    ("labels", "place"),
    [
        ({"fractile.dev/pool": "public"}, NodePlace("public")),
        ({"gaia.tencent.com/gpu-pool": "wx", "gaia.tencent.com/gpu-model": "M40"}, NodePlace("wx", "M40")),
        ({"tkestack.io/gpu-pool": "wx", "tkestack.io/gpu-model": "M40"}, NodePlace("wx", "M40")),
        ({"fractile.dev/pool": "ours", "gaia.tencent.com/gpu-pool": "theirs"}, NodePlace("ours")),
        ({"fractile.dev/pool": ""}, NodePlace()),
        (None, NodePlace()),
    ],
)
def test_pool_and_model_of_a_node_are_what_its_labels_say(labels: dict[str, str] | None, place: NodePlace) -> None:
    world = World(others=False)
    world.handlers.node_changed(ObjectMeta(name="n1", labels=labels))
    assert world.usage.place(NodeName("n1")) == place
    assert world.eased == (place != NodePlace())
    world.handlers.node_gone(Gone("", "n1", "u"))
    assert world.usage.place(NodeName("n1")) == NodePlace()


def test_labels_wake_nobody_where_nobody_is_limited() -> None:
    world = World()
    world.handlers.node_changed(ObjectMeta(name="n1", labels={"fractile.dev/pool": "x"}))
    assert world.eased == 0
