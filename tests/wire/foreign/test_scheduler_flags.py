"""What flags said before, the configuration file says afterwards."""

import pytest

from fractile.errors import WireError
from fractile.wire.foreign.scheduler_flags import document
from fractile.wire.kubernetes.scheduler_config import ExtenderConfig, SchedulerConfigOptions

EXTENDER = ExtenderConfig("http://x:1/s", {"a/b": False})
KUBEADMS = ("kube-scheduler", "--bind-address=127.0.0.1", "--kubeconfig=/k", "--leader-elect=true")


def test_a_hardened_cluster_stays_so() -> None:
    told = (*KUBEADMS, "--profiling=false", "--kube-api-qps=100", "--kube-api-burst=200")

    found = document(SchedulerConfigOptions(36, "config", extender=EXTENDER), told)

    assert found["enableProfiling"] is False
    assert found["clientConnection"] == {"kubeconfig": "/etc/kubernetes/scheduler.conf", "qps": 100.0, "burst": 200}


def test_the_leader_election_stays_as_it_was_told() -> None:
    told = (*KUBEADMS, "--leader-elect-lease-duration=30s", "--leader-elect-resource-name=other")

    found = document(SchedulerConfigOptions(21, "config", extender=EXTENDER), told)

    assert found["leaderElection"] == {"leaderElect": True, "leaseDuration": "30s", "resourceName": "other"}


def test_plain_http_of_old_versions_does_not_leave_the_machine() -> None:
    found = document(SchedulerConfigOptions(22, "config", extender=EXTENDER), (*KUBEADMS, "--port=0"))

    assert found["healthzBindAddress"] == found["metricsBindAddress"] == "127.0.0.1:10251"
    assert "healthzBindAddress" not in document(SchedulerConfigOptions(23, "config", extender=EXTENDER), KUBEADMS)


def test_a_port_for_plain_http_that_was_asked_for_stays() -> None:
    found = document(
        SchedulerConfigOptions(20, "config", extender=EXTENDER), (*KUBEADMS, "--address=10.0.0.1", "--port=7777")
    )

    assert found["healthzBindAddress"] == "10.0.0.1:7777"


def test_a_policy_file_takes_no_flag_away_so_it_says_none_of_them() -> None:
    found = document(
        SchedulerConfigOptions(20, "policy", extender=EXTENDER), (*KUBEADMS, "--profiling=false", "--scheduler-name=x")
    )

    assert set(found) == {"apiVersion", "kind", "extenders"}


@pytest.mark.parametrize(
    ("wish", "flag", "told"),
    [
        (SchedulerConfigOptions(28, "config"), "--write-config-to=/x", "cannot be combined"),
        (SchedulerConfigOptions(20, "config"), "--scheduler-name=mine", "cannot be combined"),
        (SchedulerConfigOptions(20, "policy"), "--policy-configmap=mine", "cannot be combined"),
        (
            SchedulerConfigOptions(20, "config"),
            "--algorithm-provider=ClusterAutoscalerProvider",
            "cannot be combined",
        ),
        (SchedulerConfigOptions(22, "policy"), "--v=4", "1.22 exits with"),
        (SchedulerConfigOptions(28, "config"), "--kube-api-qps=many", "is invalid"),
        (SchedulerConfigOptions(28, "config"), "--profiling=perhaps", "is invalid"),
    ],
)
def test_a_flag_that_no_file_can_say_is_refused(wish: SchedulerConfigOptions, flag: str, told: str) -> None:
    with pytest.raises(WireError, match=told):
        document(wish, (*KUBEADMS, flag))
