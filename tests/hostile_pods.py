"""Pods that a tenant, or a stranger at the webhook's port, writes to cost time. By name, as JSON of the size that is
asked for: the API server stores 1.5 MB of a pod, and the webhook reads reviews of 7 MiB.
"""

import itertools
from collections.abc import Callable

STORED = 1_500_000  # bytes
REVIEWED = 6_900_000

_GPU = b'"nvidia.com/gpu":"1","nvidia.com/gpumem":"1"'
_TENCENT = b'"tencent.com/vcuda-core":"10","tencent.com/vcuda-memory":"1"'
_WISHES = (
    b"nvidia.com/use-gputype",
    b"nvidia.com/nouse-gputype",
    b"nvidia.com/use-gpuuuid",
    b"nvidia.com/nouse-gpuuuid",
    b"hami.io/gpu-scheduler-policy",
    b"hami.io/node-scheduler-policy",
    b"fractile.dev/node-policy",
    b"tencent.com/vcuda-core-limit",
)


def _pod(containers: bytes, annotations: bytes = b"", init: bytes = b"") -> bytes:
    meta = b'{"name":"a","namespace":"n","uid":"u","annotations":{' + annotations + b"}}"
    spec = b'{"initContainers":[' + init + b'],"containers":[' + containers + b"]}"
    return b'{"metadata":' + meta + b',"spec":' + spec + b"}"


def _containers(count: int, limits: bytes = _GPU) -> bytes:
    return b",".join(b'{"name":"c%d","resources":{"limits":{%b}}}' % (n, limits) for n in range(count))


def _filled(one: Callable[[int], bytes], size: int) -> bytes:
    """As many pieces as the size takes."""
    pieces: list[bytes] = []
    left = size
    for number in itertools.count():
        piece = one(number)
        left -= len(piece) + 1
        if left < 0:
            return b",".join(pieces)
        pieces.append(piece)
    raise AssertionError


def _wished(text: bytes, size: int, names: tuple[bytes, ...] = _WISHES) -> bytes:
    each = size // len(names) - 64
    return b",".join(b'"%b":"%b"' % (name, (text * (each // len(text) + 1))[:each]) for name in names)


def _amounts(names: bytes, size: int) -> bytes:
    return b'{"name":"c","resources":{"limits":{' + _filled(lambda n: names % n + b':"1"', size) + b"}}}"


SHAPES: dict[str, Callable[[int], bytes]] = {
    "a policy of many words, 200 containers": lambda size: _pod(
        _containers(200), _wished(b"a,", min(size - 20_000, 260_000), (b"hami.io/gpu-scheduler-policy",))
    ),
    "all wishes long, 200 containers": lambda size: _pod(_containers(200), _wished(b"a,", size - 20_000)),
    "all wishes empty words, 200 containers": lambda size: _pod(_containers(200), _wished(b", ", size - 20_000)),
    "all wishes digits, 200 containers of Tencent": lambda size: _pod(
        _containers(200, _TENCENT), _wished(b"9", size - 20_000)
    ),
    "many models that are just allowed, 64 containers": lambda size: _pod(
        _containers(64), _wished(b"abcdefg,", 2_100, (b"nvidia.com/use-gputype",))
    ),
    "one container, classes": lambda size: _pod(_amounts(b'"class.fractile.dev/%d"', size - 200)),
    "one container, classes and slots": lambda size: _pod(
        _amounts(b'"class.fractile.dev/%d"', size - 300) + b"," + _containers(1, b'"fractile.dev/gpu":"1"')
    ),
    "one container, names of others": lambda size: _pod(_amounts(b'"a.b/%d"', size - 200)),
    "one container, bare names": lambda size: _pod(_amounts(b'"x%d"', size - 200)),
    "containers": lambda size: _pod(
        _filled(lambda n: b'{"name":"c%d","resources":{"limits":{%b}}}' % (n, _GPU), size - 200)
    ),
    "small containers of others": lambda size: _pod(_filled(lambda _: b'{"resources":{"limits":{"a":1}}}', size - 200)),
    "empty containers": lambda size: _pod(b"{}" + b",{}" * (size // 3 - 100)),
    "init containers, then containers": lambda size: _pod(
        _containers(128, _GPU),
        init=_filled(lambda n: b'{"name":"i%d","resources":{"limits":{%b}}}' % (n, _GPU), size // 2),
    ),
    "annotations": lambda size: _pod(_containers(1), _filled(lambda n: b'"a%d":""' % n, size - 200)),
    "an annotation of escapes": lambda size: _pod(
        _containers(1), b'"nvidia.com/use-gputype":"' + b"\\u00e9" * (size // 6 - 100) + b'"'
    ),
    "an amount of many digits": lambda size: _pod(_containers(1, b'"nvidia.com/gpu":"' + b"9" * (size - 400) + b'"')),
    "a container with a long name": lambda size: _pod(
        b'{"name":"' + b"n" * (size - 400) + b'","resources":{"limits":{"nvidia.com/gpu":"x"}}}'
    ),
    "a class with a long name": lambda size: _pod(
        _containers(1, b'"class.fractile.dev/' + b"n" * (size - 400) + b'":"1","class.fractile.dev/n":"1"')
    ),
    "many cards": lambda size: _pod(
        _containers(128, b'"aliyun.com/gpu-count":"128"'), init=_containers(128, b'"aliyun.com/gpu-count":"128"')
    ),
}


def review(pod: bytes, *, kind: str = "Pod", group: str = "") -> bytes:
    """What the API server would send about it, if it is to be made; of other kinds it is the template."""
    asked = b'"uid":"x","kind":{"group":"%b","version":"v1","kind":"%b"},"operation":"CREATE","namespace":"n"'
    about = pod if kind == "Pod" else b'{"spec":{"template":' + pod + b"}}"
    head = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{'
    return head + asked % (group.encode(), kind.encode()) + b',"object":' + about + b"}}"


def just_read(shape: Callable[[int], bytes], most: int) -> bytes:
    """The largest of the shape of which objects and members are few enough that somebody looks at it."""
    size = REVIEWED
    while True:
        found = shape(size)
        much = max(found.count(b":"), found.count(b"{"), found.count(b",") // 2)
        if much < most - 20:
            return found
        size = size * (most - 100) // much * 99 // 100
