"""The generated messages are those of the .proto files beside them, and name the services that rpc.py calls."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import FileDescriptor

from fractile.agent.kubelet import rpc
from fractile.agent.kubelet.api import deviceplugin_pb2, podresources_pb2, vcuda_pb2

SOURCE = Path(rpc.__file__).parents[3]
FOLDER = Path("fractile/agent/kubelet/api")
METHODS = (
    *(rpc.REGISTER, rpc.OPTIONS, rpc.LIST_AND_WATCH, rpc.PREFER, rpc.ALLOCATE, rpc.PRE_START),
    *(rpc.LIST, rpc.GET, rpc.GET_ALLOCATABLE, rpc.REGISTER_VDEVICE),
)


def test_the_generated_code_is_up_to_date(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed: pip install 'fractile[dev]'")
    shutil.copytree(SOURCE / FOLDER, tmp_path / FOLDER, ignore=shutil.ignore_patterns("*_pb2*"))
    names = ["deviceplugin", "podresources", "vcuda"]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{tmp_path}", f"--python_out={tmp_path}"]
    protos = [str(tmp_path / FOLDER / f"{name}.proto") for name in names]
    subprocess.run([*command, f"--pyi_out={tmp_path}", *protos], check=True, timeout=60)
    for made in (f"{name}_pb2{suffix}" for name in names for suffix in (".py", ".pyi")):
        assert (tmp_path / FOLDER / made).read_text() == (SOURCE / FOLDER / made).read_text(), (
            f"run `make proto`: {made}"
        )


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.path)
def test_each_method_is_one_of_the_proto_files(
    method: rpc.Method[deviceplugin_pb2.Empty, deviceplugin_pb2.Empty],
) -> None:
    files: list[FileDescriptor] = [deviceplugin_pb2.DESCRIPTOR, podresources_pb2.DESCRIPTOR, vcuda_pb2.DESCRIPTOR]
    services = {s.full_name: s for file in files for s in file.services_by_name.values()}
    described = services[method.service].methods_by_name[method.name]
    assert described.input_type is method.request.DESCRIPTOR
    assert described.output_type is method.response.DESCRIPTOR
