"""An upgrade of the chart over a release whose extender was open, against the real API server.

What is installed is looked up only where there is a cluster, so no other test can tell.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from fractile.lab.machine import programs
from tests.charts.rendering import CHART, NAMESPACE
from tests.contract import real_apiserver
from tests.contract.kubectl import Kubectl
from tests.contract.real_apiserver import RealApiServer


@pytest.fixture(scope="module")
def server() -> Iterator[RealApiServer]:
    if why := real_apiserver.missing():
        pytest.skip(why)
    with tempfile.TemporaryDirectory() as folder, real_apiserver.running(Path(folder)) as made:
        yield made


def installed(server: RealApiServer, *args: str) -> None:
    """A control plane with these arguments, as a release of before has left it."""
    found = programs.find(os.environ, ("kubectl",))
    assert found is not None
    labels = {"app": "fractile"}
    pod = {"containers": [{"name": "control-plane", "image": "none", "args": ["control-plane", *args]}]}
    spec: dict[str, Any] = {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    manifests = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "fractile", "namespace": NAMESPACE},
            "spec": spec,
        },
    ]
    Kubectl(found["kubectl"], server).apply(yaml.safe_dump_all(manifests))


def upgraded(server: RealApiServer, **clients: object) -> str:
    """What Helm says; "" when it goes on."""
    values = {"controlPlane": {"clients": clients}}
    try:
        with helm_python.Config(kubeconfig_path=str(server.kubeconfig), namespace=NAMESPACE) as config:
            config.install(str(CHART), "fractile", values, dry_run="server")
    except helm_python.HelmError as e:
        return str(e)
    return ""


def test_an_open_extender_is_not_closed_before_kube_scheduler_was_told(server: RealApiServer) -> None:
    installed(server, "--listen=0.0.0.0:8443")
    said = upgraded(server)
    for step in (
        "insecureOpen=true",
        "fractile-extender-client",
        "fractile install-scheduler",
        "docs/operate/install.md",
    ):
        assert step in said
    assert "clients" not in upgraded(server, insecureOpen=True)


@pytest.mark.parametrize("before", ["--client-ca=/etc/fractile-clients/ca.crt", "--insecure-open-extender"])
def test_an_extender_that_was_closed_or_left_open_on_purpose_is_upgraded(server: RealApiServer, before: str) -> None:
    installed(server, "--listen=0.0.0.0:8443", before)
    assert "clients" not in upgraded(server)
