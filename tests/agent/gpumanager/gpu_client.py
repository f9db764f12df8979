"""gpu-client as the library of gpu-manager runs it: its arguments, its one call, its exit status.

The original: evidence/gpu-manager.md#registration. The message is put together here by hand, so that it does not depend
on the code under test. ``--uid`` is ours: whose process it should be when it connects.
"""

# The type stubs of gRPC leave the message types of channels open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import copy as _copy  # noqa: F401  # pyright: ignore[reportUnusedImport]  gRPC imports it late, when ours may not
import os
import sys
from collections.abc import Callable

import grpc

METHOD = "/vcuda.VCUDAService/RegisterVDevice"
FIELDS = {"--bus-id": 1, "--pod-uid": 2, "--cont-name": 3, "--cont-id": 4}


def message(arguments: dict[str, str]) -> bytes:
    out = b""
    for name, number in FIELDS.items():
        text = arguments.get(name, "").encode()
        if text:
            out += bytes([number << 3 | 2, len(text)]) + text
    return out


def as_it_is(data: bytes) -> bytes:
    return data


def main(words: list[str]) -> int:
    arguments = dict(zip(words[::2], words[1::2], strict=True))
    options = [("grpc.default_authority", "localhost"), ("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(f"unix:{arguments['--addr']}", options=options) as channel:
        call: Callable[..., bytes] = channel.unary_unary(METHOD, as_it_is, as_it_is)
        if "--uid" in arguments:
            os.setuid(int(arguments["--uid"]))
        try:
            answer = call(message(arguments), timeout=20)
        except grpc.RpcError as e:
            print(e, flush=True)
            return 1
    print("answered", answer, flush=True)  # pyright: ignore[reportUnknownArgumentType]  # gRPC has no types
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
