"""kube-scheduler's configuration by version. That the real programs accept it is shown by tests/versions."""

import msgspec
import pytest

from fractile.errors import WireError
from fractile.wire.foreign import kubeadm
from fractile.wire.kubernetes.scheduler_config import (
    ExtenderConfig,
    SchedulerConfigOptions,
    Tls,
    api_version,
    document,
    extender_of,
    minor_of,
)
from fractile.wire.kubernetes.scoring import Strategy, StrategyKind, Weighted

GPU = Strategy(StrategyKind.MOST, (Weighted("nvidia.com/gpu", 5), Weighted("cpu")))
EXTENDER = ExtenderConfig("https://x:1/s", {"a/b": False, "a/c": True}, Tls(ca="/ca"))


@pytest.mark.parametrize(("text", "minor"), [("1.20", 20), ("v1.28", 28), (" 1.36.3 ", 36)])
def test_versions_are_read_as_people_write_them(text: str, minor: int) -> None:
    assert minor_of(text) == minor


@pytest.mark.parametrize("text", ["1.19", "1.37", "1", "2.20", "", "1.28-rc.1", "١.٢٨"])
def test_versions_that_are_not_served_are_refused(text: str) -> None:
    with pytest.raises(WireError):
        minor_of(text)


def test_each_version_has_its_api() -> None:
    served = {minor: api_version(minor).rpartition("/")[2] for minor in range(20, 37)}

    assert [served[m] for m in (20, 21, 22, 23, 24)] == ["v1beta1", "v1beta1", "v1beta2", "v1beta3", "v1beta3"]
    assert {served[m] for m in range(25, 37)} == {"v1"}


@pytest.mark.parametrize("minor", range(20, 37))
def test_strategies_are_plugins_of_their_own_up_to_1_21_and_arguments_of_fit_afterwards(minor: int) -> None:
    (profile,) = document(SchedulerConfigOptions(minor, "config", GPU))["profiles"]
    (config,) = profile["pluginConfig"]

    assert config["name"] == ("NodeResourcesMostAllocated" if minor <= 21 else "NodeResourcesFit")
    assert profile["plugins"]["score"]["enabled"] == [{"name": config["name"], "weight": 100}]
    off = "NodeResourcesLeastAllocated" if minor <= 21 else "NodeResourcesFit"
    assert profile["plugins"]["score"]["disabled"] == [{"name": off}]


def test_another_profile_leaves_the_default_one_as_it_was() -> None:
    assert document(SchedulerConfigOptions(28, "config", GPU, profile="packed"))["profiles"][0] == {
        "schedulerName": "default-scheduler"
    }


def test_a_policy_file_repeats_the_default_priorities_but_that_for_empty_nodes() -> None:
    ratio = Strategy(StrategyKind.RATIO, (Weighted("a/b", 5),))

    names = [p["name"] for p in document(SchedulerConfigOptions(20, "policy", ratio))["priorities"]]

    assert names[0] == "RequestedToCapacityRatioPriority"
    assert "LeastRequestedPriority" not in names
    assert {"InterPodAffinityPriority", "TaintTolerationPriority", "EvenPodsSpreadPriority"} <= set(names)


def test_a_policy_file_with_the_extender_alone_leaves_the_priorities_to_kube_scheduler() -> None:
    assert "priorities" not in document(SchedulerConfigOptions(22, "policy", extender=EXTENDER))


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        (SchedulerConfigOptions(23, "policy", GPU), "1.23 does not read Policy files"),
        (SchedulerConfigOptions(20, "policy", profile="packed"), "no profiles"),
        (SchedulerConfigOptions(20, "policy", GPU), "most-allocated only for cpu=1,memory=1"),
    ],
    ids=["too new", "profile", "resources"],
)
def test_what_a_policy_file_cannot_say_is_refused(wish: SchedulerConfigOptions, told: str) -> None:
    with pytest.raises(WireError, match=told):
        document(wish)


def test_the_extender_is_spelt_differently_in_a_policy_file() -> None:
    (old,) = document(SchedulerConfigOptions(22, "policy", extender=EXTENDER))["extenders"]
    new = extender_of(EXTENDER)

    assert (new["enableHTTPS"], new["httpTimeout"]) == (True, "5s")
    assert (old["enableHttps"], old["httpTimeout"]) == (True, 5_000_000_000)
    assert {k: v for k, v in old.items() if k not in ("enableHttps", "httpTimeout")} == {
        k: v for k, v in new.items() if k not in ("enableHTTPS", "httpTimeout")
    }
    assert new["managedResources"] == [
        {"name": "a/b", "ignoredByScheduler": False},
        {"name": "a/c", "ignoredByScheduler": True},
    ]


@pytest.mark.parametrize(("minor", "version"), [(20, "v1beta2"), (22, "v1beta3"), (30, "v1beta3"), (31, "v1beta4")])
def test_kubeadm_takes_arguments_as_a_map_and_from_v1beta4_on_as_a_list(minor: int, version: str) -> None:
    found = kubeadm.document(minor, "config", "/f")

    assert found["apiVersion"] == f"kubeadm.k8s.io/{version}"
    told = [{"name": "config", "value": "/f"}] if version == "v1beta4" else {"config": "/f"}
    assert found["scheduler"]["extraArgs"] == told


@pytest.mark.parametrize(("minor", "like"), [(21, 20), (23, 24), *((minor, 25) for minor in range(26, 37))])
def test_versions_that_are_not_tested_get_what_a_tested_one_gets(minor: int, like: int) -> None:
    for strategy in (GPU, Strategy(StrategyKind.RATIO), None):
        for form in ("policy", "config")[minor > 22 :]:
            if form == "policy" and strategy is GPU:
                continue  # which it cannot say
            wish = SchedulerConfigOptions(minor, "policy" if form == "policy" else "config", strategy, EXTENDER)
            assert document(wish) == document(msgspec.structs.replace(wish, minor=like))
