"""An argument of a program and the value of the chart that stands for it."""

import pytest

from fractile.errors import SetupError
from fractile.lab.cluster.chart_options import with_arguments
from tests.charts.rendering import container, documents

PLAIN = {"controlPlane": {"replicas": 2, "quota": {"configMap": "a/b"}}, "webhook": {"port": 1}}


def test_an_argument_becomes_its_value_and_nothing_else_changes() -> None:
    found = with_arguments(PLAIN, ["--quota-others", "deny", "--outside-ledger=evict"])

    assert found == {
        "controlPlane": {"replicas": 2, "quota": {"configMap": "a/b", "others": "deny"}},
        "webhook": {"port": 1},
        "agent": {"outsideLedger": "evict"},
    }
    assert PLAIN == {"controlPlane": {"replicas": 2, "quota": {"configMap": "a/b"}}, "webhook": {"port": 1}}
    assert with_arguments(PLAIN, []) == PLAIN


@pytest.mark.parametrize(
    ("kind", "name", "args"),
    [
        ("Deployment", "fractile", ["--default-classes", "{vendor}.{model}"]),
        ("Deployment", "fractile", ["--quota-others", "deny"]),
        ("Deployment", "fractile", ["--placement-gate"]),
        ("Deployment", "fractile", ["--global-placement"]),
        ("DaemonSet", "fractile-agent", ["--outside-ledger=evict"]),
    ],
)
def test_the_chart_gives_the_program_that_argument(kind: str, name: str, args: list[str]) -> None:
    given = container(documents(with_arguments({}, args)), kind, name)["args"]

    assert "=".join(args) in given


def test_an_argument_that_the_chart_knows_no_value_for_is_refused_by_name() -> None:
    with pytest.raises(SetupError, match="no value for the argument --lease"):
        with_arguments({}, ["--lease="])
    with pytest.raises(SetupError, match="without its value: --quota-others"):
        with_arguments({}, ["--quota-others"])
