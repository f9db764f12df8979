"""The network of the nodes: one bridge and one /24 per node, and free loopback ports for the control plane.

The bridge has the node's own address, so it works on a machine without any network. Forwarding is enabled only for our
bridges, not for the machine; it ends with the bridge. Failure rule: closed, with the message of `ip` in a SetupError.
"""

import contextlib
import hashlib
import ipaddress
import itertools
import json
import socket
import subprocess
from collections.abc import Container, Sequence
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from fractile.errors import SetupError

_POOL = IPv4Network("10.224.0.0/12")  # 4096 networks of /24
_PORTS = range(20_000, 32_000)
_TIMEOUT = 10.0


def bridge_name(cluster: str, index: int) -> str:
    """The name of the node's bridge: at most 15 bytes (IFNAMSIZ), and different for differently named clusters."""
    return f"fr{_digest(cluster)}-{index}"


def gateway(subnet: IPv4Network) -> IPv4Address:
    """The address of the node: the first of its network."""
    return subnet[1]


def choose_subnets(cluster: str, count: int, *, taken: Sequence[IPv4Network]) -> list[IPv4Network]:
    """``count`` networks that overlap none of ``taken``; the cluster's name determines where the search starts."""
    pool = list(_POOL.subnets(new_prefix=24))
    first = int(_digest(cluster), 16) % len(pool)
    free = [net for net in pool[first:] + pool[:first] if not any(net.overlaps(t) for t in taken)]
    if len(free) < count:
        raise SetupError(f"no {count} free networks are left in {_POOL}; take down clusters that you no longer need")
    return free[:count]


def taken_networks() -> list[IPv4Network]:
    """The networks that this machine has routes to."""
    routes = json.loads(_ip("-j", "-4", "route", "show", "table", "all") or "[]")
    found: list[IPv4Network] = []
    for route in routes:
        with contextlib.suppress(ValueError):  # "default"
            found.append(ipaddress.IPv4Network(route["dst"], strict=False))
    return found


def choose_ports(cluster: str, count: int, *, taken: Container[int]) -> list[int]:
    """Loopback TCP ports that are free now and not in ``taken``.

    They are below the range from which the kernel takes ports for outgoing connections (ip_local_port_range); otherwise
    a restarted component could find its port in use.
    """
    first = int(_digest(cluster), 16) % len(_PORTS)
    candidates = (_PORTS[(first + i) % len(_PORTS)] for i in range(len(_PORTS)))
    found = list(itertools.islice((p for p in candidates if p not in taken and _is_free(p)), count))
    if len(found) < count:
        raise SetupError(
            f"no {count} free ports are left between {_PORTS[0]} and {_PORTS[-1]}; take down other clusters"
        )
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def ensure_bridge(name: str, subnet: IPv4Network) -> bool:
    """Make the bridge and give it the node's address; False when it existed."""
    address = f"{gateway(subnet)}/{subnet.prefixlen}"
    existed = _exists(name)
    if not existed:
        # A fixed hardware address: otherwise each new pod changes it, and older pods lose their gateway.
        _ip("link", "add", name, "address", _hardware_address(subnet), "type", "bridge")
    _ip("addr", "replace", address, "dev", name)
    _ip("link", "set", name, "up")
    Path(f"/proc/sys/net/ipv4/conf/{name}/forwarding").write_text("1\n")
    return not existed


def remove_bridge(name: str) -> None:
    """Remove the bridge and the host ends of the pods' veth pairs on it."""
    if not _exists(name):
        return
    for port in sorted(Path(f"/sys/class/net/{name}/brif").glob("*")):
        with contextlib.suppress(SetupError):  # it disappears with the pod's network namespace
            _ip("link", "delete", port.name)
    _ip("link", "delete", name)


def bridges(cluster: str) -> list[str]:
    """The existing bridges of the cluster."""
    prefix = bridge_name(cluster, 0).rpartition("-")[0]
    return sorted(p.name for p in Path("/sys/class/net").glob(f"{prefix}-*"))


def _digest(cluster: str) -> str:
    """Eight hexadecimal digits, different for differently named clusters."""
    return hashlib.sha256(cluster.encode()).hexdigest()[:8]


def _exists(name: str) -> bool:
    return Path(f"/sys/class/net/{name}").exists()


def _hardware_address(subnet: IPv4Network) -> str:
    return ":".join(f"{octet:02x}" for octet in (0x02, 0xF5, *gateway(subnet).packed))


def _ip(*args: str) -> str:
    done = subprocess.run(["ip", *args], capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    if done.returncode != 0:
        raise SetupError(f"`ip {' '.join(args)}` failed: {done.stderr.strip()}")
    return done.stdout
