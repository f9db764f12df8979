"""What kube-scheduler knows of a release over upgrades of the chart: an address, an authority, its certificate.

Against the real API server, since the chart looks up what is there.
"""

import base64
import json
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import helm_python
import pytest
from cryptography import x509

from fractile.lab.machine import programs
from tests.charts.rendering import CHART, NAMESPACE, ROOT
from tests.contract import real_apiserver
from tests.contract.kubectl import Kubectl
from tests.contract.real_apiserver import RealApiServer

pytestmark = pytest.mark.long

NAME = "fractile"
AGAIN = "fetch ca.crt again"
Values = dict[str, Any]


@dataclass(frozen=True)
class Release:
    """One on a server of its own; each value below ``controlPlane``."""

    server: RealApiServer
    kubectl: Kubectl

    def helm(self, verb: str, **control_plane: object) -> None:
        options = {"reset_values": True} if verb == "upgrade" else {}
        with self._config() as config:
            getattr(config, verb)(str(CHART), NAME, _values(control_plane), timeout=60, **options)

    def notes(self, **control_plane: object) -> str:
        """What an upgrade to these values would say at its end, with its lines joined."""
        with self._config() as config:
            chart = helm_python.Chart.load(str(CHART))
            made = config.render(chart, _values(control_plane), name=NAME, namespace=NAMESPACE, is_upgrade=True)
        return " ".join(made["fractile/templates/NOTES.txt"].split())

    def remove(self) -> None:
        with self._config() as config:
            config.uninstall(NAME)

    def secret(self, name: str = "fractile-extender-tls") -> dict[str, bytes]:
        found = json.loads(self.kubectl("-n", NAMESPACE, "get", "secret", name, "-o", "json"))
        return {key: base64.b64decode(value) for key, value in found["data"].items()}

    def address(self) -> str:
        return self.kubectl("-n", NAMESPACE, "get", "service", NAME, "-o", "jsonpath={.spec.clusterIP}")

    def _config(self) -> helm_python.Config:
        return helm_python.Config(kubeconfig_path=str(self.server.kubeconfig), namespace=NAMESPACE)


def _values(control_plane: Values) -> Values:
    # This API server allows no privileged containers.
    return {"agent": {"sharedFiles": "disk"}, "webhook": {"enabled": False}, "controlPlane": control_plane}


@pytest.fixture(scope="module")
def running() -> Iterator[RealApiServer]:
    if why := real_apiserver.missing():
        pytest.skip(why)
    with tempfile.TemporaryDirectory() as folder, real_apiserver.running(Path(folder)) as made:
        yield made


@pytest.fixture
def release(running: RealApiServer) -> Iterator[Release]:
    found = programs.find(os.environ, ("kubectl",))
    assert found is not None
    made = Release(running, Kubectl(found["kubectl"], running))
    made.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    try:
        yield made
    finally:
        made.remove()


def names_of(certificate: x509.Certificate) -> set[str]:
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))}


def test_another_address_is_refused_before_anything_has_changed_and_taken_for_a_new_service(release: Release) -> None:
    release.helm("install", service={"clusterIP": "10.111.0.77"})
    before = release.secret()

    with pytest.raises(helm_python.HelmError) as refused:
        release.helm("upgrade", service={"clusterIP": "10.111.0.78"})
    said = str(refused.value)
    for part in ("controlPlane.service.clusterIP", "10.111.0.77", "kubectl -n fractile-system delete service fractile"):
        assert part in said
    assert release.secret() == before

    release.helm("upgrade", service={"clusterIP": "10.111.0.77"})
    assert release.secret() == before
    release.kubectl("-n", NAMESPACE, "delete", "service", NAME)
    release.helm("upgrade", service={"clusterIP": "10.111.0.78"})
    assert release.address() == "10.111.0.78"
    assert release.secret()["ca.crt"] == before["ca.crt"]


def test_an_upgrade_to_other_names_keeps_the_authority_and_signs_another_certificate(release: Release) -> None:
    release.helm("install")
    before = release.secret()
    more = {"names": ["node.example", "10.0.0.9"]}
    assert AGAIN not in release.notes(service=more)

    release.helm("upgrade", service=more)
    after = release.secret()
    assert after["ca.crt"] == before["ca.crt"]
    assert after["tls.key"] != before["tls.key"]
    authority, served = (x509.load_pem_x509_certificate(after[part]) for part in ("ca.crt", "tls.crt"))
    served.verify_directly_issued_by(authority)
    assert {"node.example", "10.0.0.9", "fractile.fractile-system.svc"} <= names_of(served)

    release.helm("upgrade", service=more)
    assert release.secret() == after


def test_where_the_authoritys_key_was_not_kept_the_notes_say_that_kube_scheduler_has_to_be_told(
    release: Release,
) -> None:
    """As in a release of an earlier version of the chart."""
    release.helm("install")
    drop = [{"op": "remove", "path": "/data/ca.key"}]
    patch = ("patch", "secret", "fractile-extender-tls", "--type=json", f"-p={json.dumps(drop)}")
    release.kubectl("-n", NAMESPACE, *patch)
    before = release.secret()
    more = {"names": ["node.example"]}
    said = release.notes(service=more)
    assert AGAIN in said
    assert "fractile install-scheduler" in said
    assert AGAIN not in release.notes()

    release.helm("upgrade")
    assert release.secret() == before
    release.helm("upgrade", service=more)
    assert release.secret()["ca.crt"] != before["ca.crt"]
    assert "ca.key" in release.secret()
    assert AGAIN not in release.notes(service=more)


def test_the_notes_say_that_another_name_makes_another_certificate_for_kube_scheduler(release: Release) -> None:
    release.helm("install")
    renamed = {"names": ["gpu-scheduler"]}
    assert "kube-scheduler's certificate" not in release.notes()
    assert "kube-scheduler's certificate is another one" in release.notes(clients=renamed)


def steps() -> list[Values]:
    """What each upgrade of the page's steps for another certificate sets below ``controlPlane``."""
    page = (ROOT / "docs" / "operate" / "security.md").read_text()
    block = page[page.index("delete secret fractile-extender-client") :].partition("```")[0]
    found = [helm_python.parse_set_string(given) for given in re.findall(r"helm upgrade .*--set (\S+)", block)]
    return [each["controlPlane"] for each in found]


@pytest.mark.parametrize("before", ["", "kube-root-ca.crt"])
def test_the_steps_that_replace_kube_schedulers_certificate_leave_the_release_as_it_was(
    release: Release, before: str
) -> None:
    clients: Values = {"configMap": before} if before else {}
    release.helm("install", clients=clients)
    old = release.secret("fractile-extender-client")
    release.kubectl("-n", NAMESPACE, "delete", "secret", "fractile-extender-client")

    opened, closed = steps()
    clients |= opened["clients"]
    release.helm("upgrade", clients=clients)
    assert release.secret("fractile-extender-client")["ca.crt"] != old["ca.crt"]
    made = release.secret("fractile-extender-client")

    clients |= closed["clients"]
    if before:
        clients["configMap"] = before  # the page's words on a release that names one
    release.helm("upgrade", clients=clients)
    assert release.secret("fractile-extender-client") == made
    shown = ("get", "deployment", NAME, "-o", "jsonpath={.spec.template.spec.containers[0].args}")
    args = json.loads(release.kubectl("-n", NAMESPACE, *shown))
    assert "--insecure-open-extender" not in args
    assert ("--client-ca=/etc/fractile-clients/ca.crt" in args) is bool(before)
