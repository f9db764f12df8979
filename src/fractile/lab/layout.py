"""Where a local cluster keeps its files, and the lock that keeps two commands apart.

<clusters>/NAME/            state.json admin.kubeconfig
    pki/ config/ etcd/      certificates, component configuration, the database
    run/                    one record per process (see processes.py); run/ns pins the mount namespaces
    logs/                   one log per process
    nodes/<index>/          everything of a node; by index, since socket paths must stay below 108 bytes
<clusters>/NAME.lock        held by up and down
<clusters>/../logs/NAME/    the logs of a cluster that was taken down (kept_logs.py)
"""

import fcntl
import os
import re
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from fractile.errors import SetupError

DEFAULT_NAME = "fractile"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,28}[a-z0-9])?")  # longer ones leave no room for socket paths


class NodeLayout(msgspec.Struct, frozen=True):
    """The folders of one node; the comments say where its mount namespace shows them."""

    root: Path

    @property
    def kubelet(self) -> Path:
        return self.root / "kubelet"  # /var/lib/kubelet

    @property
    def run(self) -> Path:
        return self.root / "run"  # /run/containerd

    @property
    def cni(self) -> Path:
        return self.root / "cni"  # /var/lib/cni

    @property
    def log(self) -> Path:
        return self.root / "log"  # /var/log

    @property
    def containerd(self) -> Path:
        return self.root / "containerd"

    @property
    def config(self) -> Path:
        return self.root / "config"

    @property
    def agent(self) -> Path:
        return self.root / "agent"

    @property
    def simgpu(self) -> Path:
        return self.root / "simgpu"  # the simulated host of the node's cards

    @property
    def hollow(self) -> Path:
        return self.root / "hollow"


class ClusterLayout(msgspec.Struct, frozen=True):
    """The state directory of one cluster."""

    root: Path
    shortcuts: Path

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    @property
    def kubeconfig(self) -> Path:
        return self.root / "admin.kubeconfig"

    @property
    def lock(self) -> Path:
        return self.root.with_name(f"{self.root.name}.lock")

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def config(self) -> Path:
        return self.root / "config"

    @property
    def sharing(self) -> Path:
        return self.config / "sharing.yaml"  # the control plane polls it every two seconds

    @property
    def authority(self) -> Path:
        return self.pki / "cluster" / "ca.crt"  # signed the certificates of all components except etcd

    @property
    def debug_token(self) -> Path:
        return self.pki / "debug-token"  # gives access to /debug/state of the control plane

    @property
    def etcd(self) -> Path:
        return self.root / "etcd"

    @property
    def images(self) -> Path:
        return self.root / "images"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def kept_logs(self) -> Path:
        return self.root.parent.with_name("logs") / self.name  # not below the cluster, which is removed

    @property
    def pins(self) -> Path:
        return self.root / "run" / "ns"

    def pin(self, index: int) -> Path:
        """The file that pins the mount namespace of a node."""
        return self.pins / str(index)

    def record(self, component: str) -> Path:
        return self.root / "run" / f"{component.replace('/', '.')}.pid"

    def log(self, component: str) -> Path:
        return self.logs / f"{component.replace('/', '.')}.log"

    def node(self, index: int) -> NodeLayout:
        return NodeLayout(self.root / "nodes" / str(index))

    def shortcut(self, index: int) -> Path:
        """A link to a hollow node's folder: under a long home directory its sockets would exceed 108 bytes."""
        return self.shortcuts / self.name / str(index)

    def all_nodes(self) -> list[NodeLayout]:
        """All nodes that have a folder, whatever the state file says."""
        return [NodeLayout(folder) for folder in sorted((self.root / "nodes").glob("*"))]

    def write(self, path: Path, content: str | bytes, *, mode: int = 0o600) -> Path:
        """Write ``content`` to ``path`` atomically, unless the file already has it."""
        data = content.encode() if isinstance(content, str) else content
        if path.exists() and path.read_bytes() == data:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{threading.get_ident()}")  # nodes are prepared in parallel
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(data)
        temporary.replace(path)
        return path


def clusters_dir(*, uid: int, env: Mapping[str, str]) -> Path:
    """The folder of this user's local clusters."""
    if uid == 0:
        return Path("/var/lib/fractile/clusters")
    state = env.get("XDG_STATE_HOME") or str(Path(env.get("HOME", "/")) / ".local" / "state")
    return Path(state) / "fractile" / "clusters"


def shortcuts_dir(*, uid: int, env: Mapping[str, str]) -> Path:
    """A folder with a short path, in which this user may create links."""
    if uid == 0:
        return Path("/run/fractile")
    runtime = env.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "fractile" if runtime else Path(f"/tmp/fractile-{uid}")


def default_clusters_dir() -> Path:
    return clusters_dir(uid=os.geteuid(), env=os.environ)


def cluster_names(clusters: Path) -> list[str]:
    """The names of the clusters that exist, including incomplete ones."""
    return sorted(p.name for p in clusters.glob("*") if p.is_dir()) if clusters.is_dir() else []


def layout(clusters: Path, name: str) -> ClusterLayout:
    """The layout of cluster ``name``; SetupError when the name is invalid."""
    if not _NAME.fullmatch(name):
        raise SetupError(
            f"{name!r} cannot name a cluster; use at most 30 lower-case letters, digits and hyphens, "
            "with a letter or digit first and last"
        )
    return ClusterLayout(clusters / name, shortcuts_dir(uid=os.geteuid(), env=os.environ))


@contextmanager
def locked(place: ClusterLayout) -> Generator[None]:
    """Hold the cluster's lock; SetupError immediately when another command holds it. The kernel frees it on a crash."""
    place.lock.parent.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor = os.open(place.lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SetupError(
                    f"another fractile up or down is running for cluster {place.name}; wait until it has finished"
                ) from None
            if not _same_file(descriptor, place.lock):
                continue  # `down` removed the file between open and flock: lock the new one
            yield
            return
        finally:
            os.close(descriptor)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(descriptor)
    return (here.st_ino, here.st_dev) == (there.st_ino, there.st_dev)
