"""Puts objects straight into etcd, through its JSON gateway, before the API server starts.

Sixty-five thousand objects through the API server would be minutes of both cores. It reads JSON from etcd as well as
what it writes itself, and fills in its defaults when it reads.
"""

import base64
import http.client
import json
import ssl
from collections.abc import Iterable, Iterator
from itertools import islice

from fractile.errors import SetupError
from fractile.lab.cluster.certificates import KeyPair
from fractile.lab.cluster.controlplane import Secrets
from fractile.lab.cluster.state import ClusterState
from tests.load.world import Stored

_AT_ONCE = 100  # puts in a transaction; etcd takes 128
_TIMEOUT = 30.0  # seconds


def put_all(state: ClusterState, secrets: Secrets, objects: Iterable[Stored]) -> int:
    """How many were put. Blocks."""
    context = _context(secrets.etcd_ca, secrets.etcd_client)
    connection = http.client.HTTPSConnection("127.0.0.1", state.ports.etcd, timeout=_TIMEOUT, context=context)
    count = 0
    try:
        for some in _batches(objects):
            connection.request("POST", "/v3/kv/txn", transaction(some), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            said = answer.read()
            if answer.status != 200 or not json.loads(said).get("succeeded"):
                raise SetupError(f"etcd does not take objects: {answer.status} {said[:300].decode(errors='replace')}")
            count += len(some)
    finally:
        connection.close()
    return count


def transaction(some: Iterable[Stored]) -> bytes:
    """One transaction without a condition (etcdserverpb.TxnRequest in the JSON of protobuf: bytes as base64)."""
    puts = [{"requestPut": {"key": _base64(one.key.encode()), "value": _base64(one.value)}} for one in some]
    return json.dumps({"success": puts}).encode()


def _batches(objects: Iterable[Stored]) -> Iterator[list[Stored]]:
    rest = iter(objects)
    while some := list(islice(rest, _AT_ONCE)):
        yield some


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _context(ca: object, pair: KeyPair) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(ca))
    context.load_cert_chain(pair.cert, pair.key)
    return context
