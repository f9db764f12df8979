"""/debug/state of the control plane: who may see it, what those are told who may not, and what it shows."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx2
import msgspec
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from fractile.errors import SetupError
from fractile.kube.review import Reviewer
from fractile.main.debug_page import Debug, check_token_file
from fractile.wire.output import debug_state
from fractile.wire.output.debug_state import ControlPlaneState, LeadState, ProcessState
from tests.fakes.apiserver import FakeApiServer, Fault

PROCESS = ProcessState(version="1", pid=1, uptime=1, threads=1, descriptors=1, resident_bytes=1, tasks={})
IDLE = ControlPlaneState(
    time=1.0, process=PROCESS, lead=LeadState(lease="a/b", identity="me", leading=False, ready=False)
)
SECRET = "0123456789abcdef-local"


@pytest.fixture
async def server() -> AsyncGenerator[FakeApiServer]:
    async with FakeApiServer() as made:
        made.reviews = {"good": True, "weak": False}
        yield made


def debug(server: FakeApiServer, token_file: Path | None = None) -> Debug:
    return Debug(Reviewer(server.credentials()), token_file=token_file, idle=lambda _: IDLE)


def client(app: ASGIApp, *, scheme: str = "https", host: str = "10.0.0.9") -> httpx2.AsyncClient:
    """Somebody at that address."""

    async def from_there(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "client": (host, 999)}, receive, send)

    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=from_there), base_url=f"{scheme}://x")


async def status(app: ASGIApp, token: str, *, scheme: str = "https", host: str = "10.0.0.9") -> int:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with client(app, scheme=scheme, host=host) as http:
        return (await http.get("/debug/state", headers=headers)).status_code


async def test_who_may_get_the_path_sees_the_state(server: FakeApiServer) -> None:
    async with client(debug(server)) as http:
        answer = await http.get("/debug/state", headers={"authorization": "Bearer good"})
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    assert debug_state.decode(answer.content) == IDLE


@pytest.mark.parametrize(
    ("token", "code", "words"),
    [
        pytest.param("", 401, "Authorization: Bearer", id="none"),
        pytest.param("forged", 401, "does not accept this token", id="unknown"),
        pytest.param("weak", 403, "fractile:debug", id="not allowed"),
        pytest.param("t\xf6ken", 401, "not a token", id="no text"),
    ],
)
async def test_others_are_told_what_to_do(server: FakeApiServer, token: str, code: int, words: str) -> None:
    headers = {b"authorization": b"Bearer " + token.encode("latin-1")} if token else {}
    async with client(debug(server)) as http:
        answer = await http.get("/debug/state", headers=headers)
    assert (answer.status_code, words in answer.text) == (code, True), answer.text
    assert ("www-authenticate" in answer.headers) == (code == 401)


async def test_when_the_api_server_is_away_only_the_local_token_opens(server: FakeApiServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{SECRET}\n")
    server.inject(Fault(method="POST", status=500, times=100))
    app = debug(server, file)
    assert await status(app, "good") == 503
    assert await status(app, SECRET) == 200
    assert await status(app, f"{SECRET}x") == 503
    file.write_text("another-token-of-16\n")
    assert await status(app, SECRET) == 503


async def test_without_a_local_token_its_text_is_nobodys(server: FakeApiServer, tmp_path: Path) -> None:
    assert await status(debug(server), SECRET) == 401
    assert await status(debug(server, tmp_path / "gone"), SECRET) == 401
    empty = tmp_path / "empty"
    empty.write_text("")
    assert await status(debug(server, empty), " ") == 401


async def test_no_token_is_taken_over_a_line_that_others_can_read(server: FakeApiServer) -> None:
    app = debug(server)
    assert await status(app, "good", scheme="http") == 403
    assert server.requests == []
    assert await status(app, "good", scheme="http", host="127.0.0.1") == 200
    assert await status(app, "good", scheme="http", host="::1") == 200


async def test_nothing_can_be_written(server: FakeApiServer) -> None:
    async with client(debug(server)) as http:
        answer = await http.post("/debug/state", headers={"authorization": "Bearer good"})
    assert answer.status_code == 405


async def test_no_token_stands_in_the_log(server: FakeApiServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    for token in ("good", "weak", "forged"):
        await status(debug(server), token)
    assert "debug refused" in caplog.text
    assert not [token for token in ("good", "weak", "forged") if token in caplog.text]


async def test_a_term_shows_its_own_state_until_it_ends(server: FakeApiServer) -> None:
    app = debug(server)
    term = msgspec.structs.replace(IDLE, waiting=(), victims_for=3)
    app.show(lambda: term)
    async with client(app) as http:
        headers = {"authorization": "Bearer good"}
        assert debug_state.decode((await http.get("/debug/state", headers=headers)).content) == term
        app.clear()
        assert debug_state.decode((await http.get("/debug/state", headers=headers)).content) == IDLE
    await asyncio.sleep(0)


def test_a_token_file_that_is_missing_or_short_is_refused_at_the_start(tmp_path: Path) -> None:
    check_token_file(None)
    with pytest.raises(SetupError, match="cannot be read"):
        check_token_file(tmp_path / "gone")
    short = tmp_path / "short"
    short.write_text("secret\n")
    with pytest.raises(SetupError, match="fewer than 16"):
        check_token_file(short)
