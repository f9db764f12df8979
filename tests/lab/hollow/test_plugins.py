"""Plugins of a played kubelet."""

import asyncio
import gc
import tempfile
from pathlib import Path

import grpc
import grpc.aio
import pytest

from fractile.agent.kubelet import rpc
from fractile.agent.kubelet.api import deviceplugin_pb2 as dp
from fractile.lab.hollow.plugins import Plugins


async def _options(request: dp.Empty, context: rpc.Context) -> dp.DevicePluginOptions:
    return dp.DevicePluginOptions()


async def test_a_plugin_that_registers_while_kubelet_ends_is_told_so(recwarn: pytest.WarningsRecorder) -> None:
    with tempfile.TemporaryDirectory(prefix="fr-") as folder:
        directory = Path(folder)
        plugins = Plugins(directory, changed=lambda: None)
        async with asyncio.TaskGroup() as tasks:
            await plugins.start(tasks)
        server = await rpc.serve(directory / "p.sock", rpc.unary(rpc.OPTIONS, _options))
        request = dp.RegisterRequest(version=rpc.VERSION, endpoint="p.sock", resource_name="a/b")
        try:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await rpc.call_socket(directory / rpc.KUBELET_SOCKET, rpc.REGISTER, request, timeout=10)
            assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.UNAVAILABLE, "kubelet ends")
            assert plugins.options("a/b") is None
            assert not plugins.knows("a/b")
        finally:
            await server.stop(0)
            await plugins.stop()
    gc.collect()
    assert [str(w.message) for w in recwarn if "never awaited" in str(w.message)] == []
