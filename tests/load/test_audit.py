import base64
import json
from pathlib import Path

from tests.load.audit import Tail, writes
from tests.load.seed import transaction
from tests.load.world import Stored


def event(user: str, verb: str, resource: str, subresource: str = "") -> bytes:
    reference = {"resource": resource, **({"subresource": subresource} if subresource else {})}
    return json.dumps({"kind": "Event", "verb": verb, "user": {"username": user}, "objectRef": reference}).encode()


def test_writes_are_counted_by_who_and_what():
    lines = [event("a", "create", "pods", "binding")] * 2 + [event("a", "patch", "events"), event("b", "create", "x")]
    assert writes(lines) == {"a": {"create pods/binding": 2, "patch events": 1}, "b": {"create x": 1}}


def test_a_tail_shows_what_is_new_and_whole(tmp_path: Path):
    log = tmp_path / "log"
    log.write_bytes(b"old\n")
    tail = Tail(log)
    with log.open("ab") as file:
        file.write(b"one\ntw")
    assert tail.lines() == [b"one"]
    with log.open("ab") as file:
        file.write(b"o\n")
    assert tail.lines() == [b"two"]
    assert tail.lines() == []


def test_a_log_that_is_not_there_yet_says_nothing(tmp_path: Path):
    assert Tail(tmp_path / "log").lines() == []


def test_a_transaction_carries_keys_and_values_as_they_are():
    (put,) = json.loads(transaction([Stored("/registry/a", b'{"a":1}')]))["success"]
    assert base64.b64decode(put["requestPut"]["key"]) == b"/registry/a"
    assert base64.b64decode(put["requestPut"]["value"]) == b'{"a":1}'
