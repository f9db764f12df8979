"""`fractile debug-state` against what the programs serve."""

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fractile.agent.usage.http import Address, Handler, HttpServer, PageRequest, Response
from fractile.cli.debug_state import command
from fractile.errors import SetupError
from fractile.wire.output import debug_state
from tests.wire.output.test_debug_state import AGENT, CONTROL_PLANE


async def asked(address: Address | Path, handler: Handler, *args: str) -> Result:
    """What the command says while something answers there; PORT in an argument is the port."""
    server = HttpServer(address, {debug_state.PATH: handler})
    running = asyncio.create_task(server.run())
    await server.listening.wait()
    given = [a.replace("PORT", str(server.port)) for a in args]
    result = await asyncio.to_thread(CliRunner().invoke, command, given)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    return result


async def test_an_agent_is_asked_over_its_socket(tmp_path: Path) -> None:
    async def shown(_: PageRequest) -> Response:
        return Response(debug_state.encode(AGENT))

    path = tmp_path / "debug.sock"
    result = await asked(path, shown, f"--socket={path}")
    assert isinstance(debug_state.decode(result.output), debug_state.AgentState)


async def test_a_control_plane_is_shown_the_token_of_the_file(tmp_path: Path) -> None:
    async def shown(request: PageRequest) -> Response:
        if request.headers.get("authorization") != "Bearer secret":
            return Response(b"the API server does not accept this token\n", status=403)
        return Response(debug_state.encode(CONTROL_PLANE))

    for token, said in (("secret\n", '"control-plane"'), ("wrong", "")):
        file = tmp_path / "token"
        file.write_text(token)
        result = await asked(Address("127.0.0.1", 0), shown, "--url=http://127.0.0.1:PORT", f"--token-file={file}")
        assert said in result.output
        assert (result.exception is None) == bool(said)
        assert said or "answers 403: the API server does not accept this token" in str(result.exception)


async def test_the_answer_of_another_program_is_no_state(tmp_path: Path) -> None:
    async def other(_: PageRequest) -> Response:
        return Response(b"<html>")

    path = tmp_path / "s"
    assert "is invalid" in str((await asked(path, other, f"--socket={path}")).exception)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--socket=/nowhere/debug.sock"], "no agent answers"),
        (["--ca=x"], "go with --url"),
        (["--url=https://x"], "give --url with --token-file"),
        (["--url=x", "--token-file=/dev/null"], "is not of the form"),
        (["--url=http://127.0.0.1:1", "--token-file=/dev/null"], "holds no token"),
        (["--url=http://127.0.0.1:1", "--token-file=/nowhere"], "cannot be read"),
        (["--name=test-nobody"], "there is no local cluster 'test-nobody'"),
        (["--name=test-nobody", "--node=n1"], "there is no local cluster 'test-nobody'"),
        (["--name=x", "--socket=/nowhere"], "choose a local cluster"),
    ],
    ids=["no agent", "no url", "no token", "no address", "empty", "no file", "no cluster", "no node", "both"],
)
def test_what_is_in_the_way_is_a_sentence(args: list[str], words: str) -> None:
    with pytest.raises(SetupError, match=words):
        CliRunner().invoke(command, args, catch_exceptions=False)
