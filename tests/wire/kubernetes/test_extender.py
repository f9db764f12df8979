"""kube-scheduler's extender protocol, held against what kube-scheduler 1.36.3 really sent."""

import json
from typing import Any

import msgspec
import pytest

from fractile.errors import WireError
from fractile.wire.kubernetes import extender as wire
from fractile.wire.kubernetes.extender import BindingArgs, BindingResult, FilterResult, HostPriority
from tests.wire.golden_files import golden

_Object = dict[str, Any]


def test_the_recorded_arguments_of_filter_name_the_pod_and_the_nodes() -> None:
    args = wire.decode_args(golden("extender-args.json"))
    assert args.pod is not None
    assert (args.pod.metadata.namespace, args.pod.metadata.name) == ("default", "binpack-1")
    assert args.pod.metadata.uid == "11380d82-ef87-4873-96d7-be651e3938f7"
    assert [c.name for c in args.pod.spec.init_containers or ()] == ["warm"]
    (main,) = args.pod.spec.containers or []
    assert main.resources is not None
    assert main.resources.limits == main.resources.requests == {"aliyun.com/gpu-mem": "8138"}
    assert wire.names_of(args) == ["n1", "n2", "n3"]


def test_the_recorded_arguments_with_node_objects_name_the_same_nodes() -> None:
    args = wire.decode_args(golden("extender-args-nodes.json"))
    assert args.node_names is None
    assert wire.names_of(args) == ["n1", "n2", "n3"]


def test_node_objects_are_returned_as_they_came() -> None:
    sent: _Object = json.loads(golden("extender-args-nodes.json"))
    args = wire.decode_args(golden("extender-args-nodes.json"))
    answer: _Object = json.loads(wire.encode(FilterResult(nodes=args.nodes)))
    assert answer["Nodes"]["items"] == sent["Nodes"]["items"]
    assert answer["NodeNames"] is None


def test_the_recorded_arguments_of_bind_are_read() -> None:
    assert wire.decode_binding(golden("extender-bind.json")) == BindingArgs(
        "binpack-1", "default", "11380d82-ef87-4873-96d7-be651e3938f7", "n1"
    )


def test_the_answer_of_filter_is_byte_for_byte_as_recorded() -> None:
    answer = FilterResult(
        node_names=["n1"],
        failed={
            "n2": "8138 MiB requested on one card, the most free on one is 4069 MiB "
            "(card 0; 8138 MiB free on 2 cards together)"
        },
        unresolvable={"n3": "8138 MiB requested on one card, the largest card here has 4096 MiB"},
    )
    assert wire.encode(answer) == golden("extender-filter-answer.json")
    assert msgspec.json.decode(golden("extender-filter-answer.json"), type=FilterResult) == answer


def test_the_answer_of_prioritize_is_byte_for_byte_as_recorded() -> None:
    assert wire.encode([HostPriority("n1", 7), HostPriority("n2", 0)]) == golden("extender-prioritize-answer.json")


def test_the_answer_of_bind_is_byte_for_byte_as_recorded() -> None:
    assert wire.encode(BindingResult("the pod was deleted")) == golden("extender-bind-answer.json")
    assert wire.encode_error("the pod was deleted") == golden("extender-bind-answer.json")


def with_keys(body: bytes, rename: dict[str, str]) -> bytes:
    """The same object with some of its outer keys written otherwise."""
    fields: _Object = json.loads(body)
    return json.dumps({rename.get(key, key): value for key, value in fields.items()}).encode()


@pytest.mark.parametrize(
    "rename",
    [
        pytest.param({"Pod": "pod", "NodeNames": "nodenames", "Nodes": "nodes"}, id="lower case"),
        pytest.param({"Pod": "POD", "NodeNames": "NODENAMES", "Nodes": "NODES"}, id="upper case"),
        pytest.param({"NodeNames": "nodeNames"}, id="only the nodes"),
        pytest.param({"Pod": "pod"}, id="only the pod"),
    ],
)
@pytest.mark.parametrize("file", ["extender-args.json", "extender-args-nodes.json"])
def test_outer_keys_may_be_in_any_case(file: str, rename: dict[str, str]) -> None:
    plain = wire.decode_args(golden(file))
    renamed = wire.decode_args(with_keys(golden(file), rename))
    assert renamed.pod == plain.pod
    assert wire.names_of(renamed) == wire.names_of(plain)


@pytest.mark.parametrize(
    "rename",
    [
        pytest.param({k: k.lower() for k in ("PodName", "PodNamespace", "PodUID", "Node")}, id="lower case"),
        pytest.param({"PodUID": "podUID"}, id="only the UID"),
    ],
)
def test_the_keys_of_bind_may_be_in_any_case(rename: dict[str, str]) -> None:
    body = golden("extender-bind.json")
    assert wire.decode_binding(with_keys(body, rename)) == wire.decode_binding(body)


@pytest.mark.parametrize(
    "nodes", ['"NodeNames":null', '"NodeNames":[]', '"Nodes":{"items":null}', '"Nodes":{}', '"x":1']
)
def test_null_missing_and_empty_nodes_are_alike(nodes: str) -> None:
    args = wire.decode_args(b'{"Pod":{"metadata":{"name":"p"}},' + nodes.encode() + b"}")
    assert wire.names_of(args) == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"7",
        b"{}",
        b'{"Pod":null,"NodeNames":["n1"]}',
        b'{"Pod":[],"NodeNames":[]}',
        b"\xff",
        b'{"Pod":{},"NodeNames":[1]}',
        b'{"Pod":{},"NodeNames":[null]}',
        b'{"Pod":{},"NodeNames":"n1"}',
        b'{"Pod":{"metadata":{"name":7}},"NodeNames":[]}',
        b'{"Pod":{"spec":{"containers":{}}},"NodeNames":[]}',
        b'{"Pod":{"metadata":null},"NodeNames":[]}',
        b'{"Pod":{},"Nodes":{"items":{}}}',
        b'{"Pod":{},"NodeNames":["\\ud800"]}',
        pytest.param(b'{"Pod":{"x":' + b"[" * 200_000, id="deeply nested"),
        pytest.param(b'{"Pod":{"spec":{"priority":' + b"1" * 5000 + b"}}}", id="5000 digits"),
    ],
)
def test_what_kube_scheduler_never_sends_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        wire.names_of(wire.decode_args(body))


@pytest.mark.parametrize("item", ["7", "null", "[]", '{"metadata":null}', '{"metadata":{"name":7}}'])
def test_a_node_object_without_a_name_is_refused(item: str) -> None:
    args = wire.decode_args(b'{"Pod":{},"Nodes":{"items":[' + item.encode() + b"]}}")
    with pytest.raises(WireError):
        wire.names_of(args)


@pytest.mark.parametrize("missing", ["PodName", "PodNamespace", "PodUID", "Node"])
@pytest.mark.parametrize("empty", [True, False], ids=["empty", "absent"])
def test_a_bind_that_lacks_a_name_is_refused(missing: str, empty: bool) -> None:
    fields: _Object = json.loads(golden("extender-bind.json"))
    if empty:
        fields[missing] = ""
    else:
        del fields[missing]
    with pytest.raises(WireError, match="must name PodName, PodNamespace, PodUID and Node"):
        wire.decode_binding(json.dumps(fields).encode())
