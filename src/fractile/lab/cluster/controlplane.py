"""The control plane of a local cluster: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, and ours.

All listen on the loopback address only. Flags that are not obvious have a comment.
"""

import sys
from datetime import datetime
from pathlib import Path

import msgspec
import yaml

from fractile.dialects import aliyun, table
from fractile.dialects.dialect import ResourceKind
from fractile.lab.cluster import certificates
from fractile.lab.cluster.certificates import Authority, Identity, KeyPair
from fractile.lab.cluster.component import Component, HttpProbe
from fractile.lab.cluster.state import ClusterState
from fractile.lab.layout import ClusterLayout
from fractile.lab.machine.programs import Programs
from fractile.wire.kubernetes.scheduler_config import DEFAULT_PROFILE, ExtenderConfig, Tls, clear_lead, extender_of

CONTROL_PLANE_GROUP = "fractile:control-plane"
AGENTS_GROUP = "fractile:agents"
SCHEDULER = "system:kube-scheduler"
NO_LEASE = "--lease="
SERVICE_CIDR = "10.96.0.0/16"  # never routed: there is no kube-proxy

_HOST = "127.0.0.1"
_LOCAL = (_HOST, "localhost")


class Secrets(msgspec.Struct, frozen=True):
    """The certificates and kubeconfigs of the control plane."""

    ca: Path
    etcd_ca: Path
    etcd: KeyPair
    etcd_client: KeyPair
    apiserver: KeyPair
    kubelet_client: KeyPair
    accounts_key: Path
    admin: KeyPair
    controller_manager: KeyPair
    scheduler: KeyPair
    extender: KeyPair
    debug_token: Path
    kubeconfigs: dict[str, Path]


def server_url(state: ClusterState) -> str:
    return f"https://{_HOST}:{state.ports.apiserver}"


def webhook_url(state: ClusterState) -> str:
    """The URL at which the API server calls the webhook; empty when there is none."""
    return f"https://{_HOST}:{state.ports.webhook}" if state.fractile and state.ports.webhook else ""


def authority(place: ClusterLayout, *, now: datetime) -> Authority:
    """The authority that all components except etcd trust."""
    return Authority(place, "cluster", now=now)


def issue(place: ClusterLayout, state: ClusterState, *, now: datetime) -> Secrets:
    """Issue all certificates and kubeconfigs of the control plane; those that exist and are still right are kept."""
    cluster = authority(place, now=now)
    etcd = Authority(place, "etcd", now=now)
    admin = cluster.issue("admin", Identity("fractile:admin", ("system:masters",)))
    clients = {
        "kube-controller-manager": cluster.issue(
            "kube-controller-manager", Identity("system:kube-controller-manager", (), _LOCAL)
        ),
        "kube-scheduler": cluster.issue("kube-scheduler", Identity(SCHEDULER, (), _LOCAL)),
        "control-plane": cluster.issue("control-plane", Identity(CONTROL_PLANE_GROUP, (CONTROL_PLANE_GROUP,))),
    }
    kubeconfigs = {
        name: write_kubeconfig(place, state, cluster.ca, pair, place.config / f"{name}.kubeconfig")
        for name, pair in clients.items()
    }
    write_kubeconfig(place, state, cluster.ca, admin, place.kubeconfig)
    service = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "10.96.0.1")
    return Secrets(
        ca=cluster.ca,
        etcd_ca=etcd.ca,
        etcd=etcd.issue("server", Identity("etcd", (), _LOCAL)),
        etcd_client=etcd.issue("client", Identity("kube-apiserver")),
        apiserver=cluster.issue("kube-apiserver", Identity("kube-apiserver", (), (*_LOCAL, *service))),
        kubelet_client=cluster.issue("kubelet-client", Identity("kube-apiserver", ("system:masters",))),
        accounts_key=certificates.signing_key(place, "service-accounts"),
        admin=admin,
        controller_manager=clients["kube-controller-manager"],
        scheduler=clients["kube-scheduler"],
        extender=cluster.issue("extender", Identity("fractile extender", (), _LOCAL)),
        debug_token=certificates.debug_token(place),
        kubeconfigs=kubeconfigs,
    )


def write_kubeconfig(place: ClusterLayout, state: ClusterState, ca: Path, pair: KeyPair, path: Path) -> Path:
    text = certificates.kubeconfig(server=server_url(state), ca=ca, pair=pair, cluster=place.name)
    return place.write(path, text)


def write_scheduler_config(place: ClusterLayout, state: ClusterState, secrets: Secrets) -> Path:
    """Write kube-scheduler's configuration, with one extender. kube-scheduler does not connect to it before the first
    pod, so the two may start in any order."""
    url = f"https://{_HOST}:{state.ports.control_plane}/scheduler"
    managed = {name: kind is ResourceKind.AMOUNT for name, kind in table.managed().items()}
    pair = secrets.scheduler  # the only client that the extender accepts
    extender = ExtenderConfig(url, managed, Tls(ca=str(secrets.ca), cert=str(pair.cert), key=str(pair.key)))
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(secrets.kubeconfigs["kube-scheduler"])},
        "leaderElection": {"leaderElect": False},
        "profiles": [
            {"schedulerName": "default-scheduler"},
            _packing("fractile-binpack", {"type": "MostAllocated"}),
            _packing("fractile-ratio", {"type": "RequestedToCapacityRatio", "requestedToCapacityRatio": _SHAPE}),
        ],
        "extenders": [extender_of(extender)] if state.fractile else [],
    }
    return place.write(place.config / "kube-scheduler.yaml", yaml.safe_dump(config, sort_keys=False))


_SHAPE = {"shape": [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]}


def _packing(name: str, strategy: dict[str, object]) -> dict[str, object]:
    """A profile in which kube-scheduler packs whole cards by itself, for pods with that ``schedulerName``. Its weight
    outweighs the other scores, which spread pods."""
    args = {"scoringStrategy": strategy | {"resources": [{"name": aliyun.COUNT, "weight": 1}]}}
    fit = "NodeResourcesFit"
    return {
        "schedulerName": name,
        "plugins": {"score": {"disabled": [{"name": fit}], "enabled": [{"name": fit, "weight": 100}]}},
        "pluginConfig": [{"name": fit, "args": args}],
    }


def etcd(place: ClusterLayout, state: ClusterState, secrets: Secrets, programs: Programs) -> Component:
    client = f"https://{_HOST}:{state.ports.etcd}"
    peer = f"https://{_HOST}:{state.ports.etcd_peer}"
    argv = (
        programs["etcd"],
        f"--name={place.name}",
        f"--data-dir={place.etcd}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster={place.name}={peer}",
        "--client-cert-auth",
        f"--trusted-ca-file={secrets.etcd_ca}",
        f"--cert-file={secrets.etcd.cert}",
        f"--key-file={secrets.etcd.key}",
        "--peer-client-cert-auth",
        f"--peer-trusted-ca-file={secrets.etcd_ca}",
        f"--peer-cert-file={secrets.etcd.cert}",
        f"--peer-key-file={secrets.etcd.key}",
        "--unsafe-no-fsync",  # a power cut may destroy this cluster; waiting for the disk would slow down every call
        "--log-level=warn",
    )
    return Component("etcd", argv, probe=HttpProbe(f"{client}/health", secrets.etcd_ca, secrets.etcd_client))


def apiserver(place: ClusterLayout, state: ClusterState, secrets: Secrets, programs: Programs) -> Component:
    argv = (
        programs["kube-apiserver"],
        f"--bind-address={_HOST}",
        f"--secure-port={state.ports.apiserver}",
        # The `kubernetes` service must not point at a loopback address, and nothing uses it here.
        f"--advertise-address={state.nodes[0].address}",
        "--endpoint-reconciler-type=none",
        f"--etcd-servers=https://{_HOST}:{state.ports.etcd}",
        f"--etcd-cafile={secrets.etcd_ca}",
        f"--etcd-certfile={secrets.etcd_client.cert}",
        f"--etcd-keyfile={secrets.etcd_client.key}",
        f"--client-ca-file={secrets.ca}",
        f"--tls-cert-file={secrets.apiserver.cert}",
        f"--tls-private-key-file={secrets.apiserver.key}",
        f"--kubelet-certificate-authority={secrets.ca}",
        f"--kubelet-client-certificate={secrets.kubelet_client.cert}",
        f"--kubelet-client-key={secrets.kubelet_client.key}",
        # Otherwise logs and exec look up the node's name in DNS.
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={secrets.accounts_key}",
        f"--service-account-signing-key-file={secrets.accounts_key}",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged",
        "--anonymous-auth=false",
    )
    return Component("kube-apiserver", argv, probe=HttpProbe(f"{server_url(state)}/readyz", secrets.ca, secrets.admin))


def controller_manager(state: ClusterState, secrets: Secrets, programs: Programs) -> Component:
    kubeconfig = secrets.kubeconfigs["kube-controller-manager"]
    pair = secrets.controller_manager
    argv = (
        programs["kube-controller-manager"],
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--bind-address={_HOST}",
        f"--secure-port={state.ports.controller_manager}",
        f"--tls-cert-file={pair.cert}",
        f"--tls-private-key-file={pair.key}",
        f"--service-account-private-key-file={secrets.accounts_key}",
        f"--root-ca-file={secrets.ca}",
        "--use-service-account-credentials",
        # By default a silent node counts as lost after 50 s, which is too long for a local cluster.
        "--node-monitor-grace-period=25s",
        "--leader-elect=false",
    )
    probe = HttpProbe(f"https://{_HOST}:{state.ports.controller_manager}/healthz", secrets.ca)
    return Component("kube-controller-manager", argv, probe=probe)


def scheduler(state: ClusterState, secrets: Secrets, programs: Programs, config: Path) -> Component:
    kubeconfig = secrets.kubeconfigs["kube-scheduler"]
    pair = secrets.scheduler
    argv = (
        programs["kube-scheduler"],
        f"--config={config}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--bind-address={_HOST}",
        f"--secure-port={state.ports.scheduler}",
        f"--tls-cert-file={pair.cert}",
        f"--tls-private-key-file={pair.key}",
    )
    probe = HttpProbe(f"https://{_HOST}:{state.ports.scheduler}/healthz", secrets.ca)
    return Component("kube-scheduler", argv, probe=probe)


def fractile_control_plane(place: ClusterLayout, state: ClusterState, secrets: Secrets) -> Component:
    listen = f"{_HOST}:{state.ports.control_plane}"
    argv = (
        *fractile_program(),
        "control-plane",
        f"--kubeconfig={secrets.kubeconfigs['control-plane']}",
        f"--listen={listen}",
        f"--tls-cert={secrets.extender.cert}",
        f"--tls-key={secrets.extender.key}",
        f"--client-ca={secrets.ca}",
        f"--client-name={SCHEDULER}",
        f"--memory-unit={state.spec.unit.name}",
        NO_LEASE,  # one replica: a restart after a crash need not wait for the old lease to expire
        f"--sharing={place.sharing}",
        f"--clear-lead={DEFAULT_PROFILE}={clear_lead()}",  # the other profiles pack, with their own weights
        f"--debug-token-file={secrets.debug_token}",
        *((f"--node-policy={state.policy}",) if state.policy else ()),
        *((f"--webhook={_HOST}:{state.ports.webhook}", f"--webhook-names={_HOST}") if state.ports.webhook else ()),
    )
    return Component("control-plane", argv, probe=HttpProbe(f"https://{listen}/readyz", secrets.ca))


def fractile_program() -> tuple[str, ...]:
    """The command of this installation of fractile, whatever PATH says."""
    script = Path(sys.executable).with_name("fractile")
    return (str(script),) if script.exists() else (sys.executable, "-c", "from fractile.main.cli import main; main()")
