"""A real kube-apiserver with its etcd, on free loopback ports, for the length of a test session.

The processes die with the test process, however it ends (PR_SET_PDEATHSIG), so a killed run leaves nothing behind but
its temporary folder.
"""

import contextlib
import http.client
import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

import msgspec
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from fractile.lab.machine import programs

TOKEN = "contract-test-token"
CONTROL_PLANE = "control-plane-token"  # of the group to which the manifests give the control plane's rights
_NAMES = ("etcd", "kube-apiserver")
_START = 60.0  # seconds; 3 on an idle machine


class RealApiServer(msgspec.Struct, frozen=True):
    """Where it listens, and an administrator's kubeconfig."""

    url: str
    ca: Path
    kubeconfig: Path
    etcd: str


def missing() -> str:
    """Why the real server cannot be started here; empty when it can."""
    if programs.find(os.environ, _NAMES) is None:
        return "kube-apiserver and etcd are not built; `fractile up` builds them"
    return "" if shutil.which("setpriv") else "setpriv (util-linux) is not installed"


@contextlib.contextmanager
def running(folder: Path, *, feature_flags: tuple[str, ...] = ()) -> Generator[RealApiServer]:
    """Start etcd and kube-apiserver in ``folder``; both are ended, by pid, when the block is left."""
    found = programs.find(os.environ, _NAMES)
    assert found is not None
    etcd_port, peer_port, port = _free_ports(3)
    etcd = f"http://127.0.0.1:{etcd_port}"
    _write_secrets(folder)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_process(folder, _etcd(found["etcd"], folder, etcd, f"http://127.0.0.1:{peer_port}")))
        command = [*_apiserver(found["kube-apiserver"], folder, etcd, port), *feature_flags]
        process = stack.enter_context(_process(folder, command))
        server = RealApiServer(f"https://127.0.0.1:{port}", folder / "ca.pem", folder / "kubeconfig", etcd)
        server.kubeconfig.write_bytes(kubeconfig_of(server, TOKEN))
        _await_ready(port, folder, process)
        yield server


def _etcd(program: str, folder: Path, client: str, peer: str) -> list[str]:
    return [
        program,
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--log-level=error",
    ]


def _apiserver(program: str, folder: Path, etcd: str, port: int) -> list[str]:
    return [
        program,
        f"--etcd-servers={etcd}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={folder / 'server.pem'}",
        f"--tls-private-key-file={folder / 'server.key'}",
        f"--client-ca-file={folder / 'ca.pem'}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--authorization-mode=Node,RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={folder / 'accounts.key'}",
        f"--service-account-signing-key-file={folder / 'accounts.key'}",
        "--service-cluster-ip-range=10.111.0.0/16",
        "--disable-admission-plugins=ServiceAccount",
        "--enable-admission-plugins=NodeRestriction",
        "--watch-cache-sizes=configmaps#0",
    ]


@contextlib.contextmanager
def _process(folder: Path, command: list[str]) -> Generator[subprocess.Popen[bytes]]:
    name = Path(command[0]).name
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *command], stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()  # nothing in its folder is kept
        process.wait(timeout=30)


def _write_secrets(folder: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(folder / "server.pem"))
    certificate.private_key_pem.write_to_path(str(folder / "server.key"))
    client = authority.issue_cert(
        "admin@contract.test", common_name="contract-admin", organization_name="system:masters"
    )
    client.cert_chain_pems[0].write_to_path(str(folder / "admin.pem"))
    client.private_key_pem.write_to_path(str(folder / "admin.key"))
    (folder / "tokens.csv").write_text(
        f'{TOKEN},admin,1,"system:masters"\nweak,nobody,2\n{CONTROL_PLANE},cp,3,"fractile:control-plane"\n'
    )
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (folder / "accounts.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )


def kubeconfig_of(server: RealApiServer, token: str) -> bytes:
    return msgspec.json.encode(  # JSON is YAML
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "contract",
            "clusters": [
                {"name": "contract", "cluster": {"server": server.url, "certificate-authority": str(server.ca)}}
            ],
            "users": [{"name": "admin", "user": {"token": token}}],
            "contexts": [{"name": "contract", "context": {"cluster": "contract", "user": "admin"}}],
        }
    )


def _await_ready(port: int, folder: Path, process: subprocess.Popen[bytes]) -> None:
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    deadline = time.monotonic() + _START
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=context)
        try:
            connection.request("GET", "/readyz", headers={"Authorization": f"Bearer {TOKEN}"})
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.1)
    tail = (folder / "kube-apiserver.log").read_text(errors="replace")[-2000:]
    raise RuntimeError(f"kube-apiserver did not become ready in {_START:.0f} s:\n{tail}")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
