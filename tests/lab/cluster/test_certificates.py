"""Identities of the programs: what OpenSSL makes of them, and that they stay the same."""

import ssl
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from fractile.kube import credentials
from fractile.lab.cluster import certificates
from fractile.lab.cluster.certificates import Authority, Identity
from fractile.lab.cluster.spec import from_file
from fractile.lab.layout import ClusterLayout, layout
from fractile.wire.files import cluster_file
from fractile.wire.files.cluster_file import ClusterFile, NodeGroup

NOW = datetime(2026, 11, 21, tzinfo=UTC)
KUBELET = Identity("system:node:n1", ("system:nodes",), ("10.0.0.1", "n1"))


@pytest.fixture
def place(tmp_path: Path) -> ClusterLayout:
    return layout(tmp_path, "a")


def openssl(*args: str) -> str:
    return subprocess.run(["openssl", *args], capture_output=True, text=True, timeout=20, check=True).stdout


def test_openssl_verifies_the_chain_and_sees_name_groups_and_addresses(place: ClusterLayout) -> None:
    authority = Authority(place, "cluster", now=NOW)
    pair = authority.issue("kubelet", KUBELET)
    assert "OK" in openssl("verify", "-CAfile", str(authority.ca), str(pair.cert))
    shown = openssl(
        "x509", "-in", str(pair.cert), "-noout", "-subject", "-ext", "subjectAltName", "-nameopt", "RFC2253"
    )
    assert "CN=system:node:n1,O=system:nodes" in shown
    assert "IP Address:10.0.0.1, DNS:n1" in shown


def test_a_certificate_serves_and_identifies_over_tls(place: ClusterLayout) -> None:
    authority = Authority(place, "cluster", now=NOW)
    pair = authority.issue("x", Identity("x", (), ("127.0.0.1",)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_verify_locations(authority.ca)
    context.load_cert_chain(pair.cert, pair.key)


def test_what_exists_is_kept(place: ClusterLayout) -> None:
    first = Authority(place, "cluster", now=NOW).issue("kubelet", KUBELET).cert.read_bytes()
    again = Authority(place, "cluster", now=NOW).issue("kubelet", KUBELET).cert.read_bytes()
    assert first == again


@pytest.mark.parametrize(
    "changed",
    [
        Identity("system:node:n2", ("system:nodes",), ("10.0.0.1", "n1")),
        Identity("system:node:n1", ("system:masters",), ("10.0.0.1", "n1")),
        Identity("system:node:n1", ("system:nodes",), ("10.0.0.2", "n1")),
        Identity("system:node:n1", ("system:nodes",)),
    ],
    ids=["name", "group", "address", "no address"],
)
def test_a_certificate_that_says_something_else_is_issued_anew(place: ClusterLayout, changed: Identity) -> None:
    authority = Authority(place, "cluster", now=NOW)
    first = authority.issue("kubelet", KUBELET).cert.read_bytes()
    assert authority.issue("kubelet", changed).cert.read_bytes() != first
    assert (
        authority.issue("kubelet", changed).cert.read_bytes() == authority.issue("kubelet", changed).cert.read_bytes()
    )


def test_certificates_of_a_lost_authority_are_issued_anew(place: ClusterLayout) -> None:
    old = Authority(place, "cluster", now=NOW)
    first = old.issue("kubelet", KUBELET).cert.read_bytes()
    old.ca.unlink()
    new = Authority(place, "cluster", now=NOW)
    pair = new.issue("kubelet", KUBELET)
    assert pair.cert.read_bytes() != first
    assert "OK" in openssl("verify", "-CAfile", str(new.ca), str(pair.cert))


def test_the_etcd_authority_does_not_vouch_for_the_cluster(place: ClusterLayout) -> None:
    cluster, etcd = Authority(place, "cluster", now=NOW), Authority(place, "etcd", now=NOW)
    kubelet = x509.load_pem_x509_certificate(cluster.issue("kubelet", KUBELET).cert.read_bytes())
    with pytest.raises((ValueError, InvalidSignature)):
        kubelet.verify_directly_issued_by(x509.load_pem_x509_certificate(etcd.ca.read_bytes()))


def test_the_longest_node_name_of_a_cluster_file_fits_into_a_certificate(place: ClusterLayout) -> None:
    group = NodeGroup(name="n" * 45, count=64, cards=())
    file = cluster_file.decode(msgspec.json.encode(ClusterFile(version=1, nodes=(group,))), source="f")
    name = f"fractile:agent:{from_file('a', file).nodes[-1].name}"
    pair = Authority(place, "cluster", now=NOW).issue("agent", Identity(name))
    assert name in openssl("x509", "-in", str(pair.cert), "-noout", "-subject")


def test_keys_are_for_their_owner_alone(place: ClusterLayout) -> None:
    authority = Authority(place, "cluster", now=NOW)
    for key in (authority.issue("kubelet", KUBELET).key, certificates.signing_key(place, "accounts")):
        assert key.stat().st_mode & 0o077 == 0


def test_a_kubeconfig_is_json_so_that_an_agent_needs_no_pyyaml_and_its_own_reader_takes_it(
    place: ClusterLayout,
) -> None:
    authority = Authority(place, "cluster", now=NOW)
    pair = authority.issue("kubelet", KUBELET)
    text = certificates.kubeconfig(server="https://10.0.0.1:6443", ca=authority.ca, pair=pair, cluster="a")
    assert msgspec.json.decode(text)["current-context"] == "fractile-a"
    file = place.write(place.config / "agent.kubeconfig", text)
    found = credentials.load(file)
    assert found.server == "https://10.0.0.1:6443"
    assert found.tls is not None
