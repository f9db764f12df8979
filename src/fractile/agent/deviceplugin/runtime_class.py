"""Does the runtime of a pod's RuntimeClass load the library? If it does not, the container does not start.

The library is loaded by ``/etc/ld.so.preload`` and shares memory with its node, by a file. Runtimes that put containers
into their own machines or kernels (Kata, gVisor) share no memory with the node and may not read that file: there a
container would be unlimited. A list of suitable runtimes can be complete, one of unsuitable ones cannot: so an unknown
handler is refused, and ``--runtime-handlers`` adds more. Failure rule: closed; kubelet calls again.
"""

import asyncio
import time
from collections.abc import Collection

from fractile.agent.kubelet.owner import Denied
from fractile.errors import ApiError, Unreachable
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.pacing import Clock
from fractile.wire.kubernetes.objects import KubeStruct
from fractile.wire.kubernetes.pod_mounts import MountingPod

KNOWN = frozenset({"runc", "crun", "youki"})
_NVIDIA = "nvidia"  # nvidia, nvidia-cdi, nvidia-legacy: runc with a hook or a changed specification

_FRESH = 60.0  # seconds; the handler of a class cannot be changed, but the class can be recreated
_CALL = 5.0


class _RuntimeClass(KubeStruct, frozen=True):
    handler: str = ""


class RuntimeClasses:
    """Reads the handler of each class from the API server once a minute. ``more``: other suitable handlers."""

    def __init__(self, client: KubeClient, *, more: Collection[str] = (), clock: Clock = time.monotonic) -> None:
        self._client = client
        self._known = KNOWN | frozenset(more)
        self._clock = clock
        self._handlers: dict[str, tuple[str, float]] = {}

    async def denied(self, pod: MountingPod) -> Denied | None:
        """Why no container of the pod may start; None: they may. Raises ApiError, Unreachable as the client does."""
        name = pod.spec.runtime_class_name
        if not name:
            return None
        handler = await self._handler(name)
        if handler in self._known or handler.startswith(_NVIDIA):
            return None
        return Denied(
            f"pod {pod.metadata.namespace}/{pod.metadata.name} has runtimeClassName {name[:100]}, whose handler "
            f"{handler[:100]!r} is not known to load Fractile's library into containers, so their limits would not be "
            "enforced: use a RuntimeClass of runc or crun, or, if the handler is one of these under another name, "
            f"give the agents --runtime-handlers={handler[:100]}"
        )

    async def _handler(self, name: str) -> str:
        known = self._handlers.get(name)
        if known is not None and known[1] > self._clock():
            return known[0]
        try:
            async with asyncio.timeout(_CALL):
                handler = (await self._client.get(paths.runtime_class(name), _RuntimeClass)).handler
        except TimeoutError:
            raise Unreachable(f"the API server did not answer within {_CALL:.0f} s") from None
        except ApiError as e:
            if e.code != 404:
                raise
            handler = ""  # the class was deleted after the pod was created; kubelet refuses it anyway
        self._handlers[name] = handler, self._clock() + _FRESH
        return handler
