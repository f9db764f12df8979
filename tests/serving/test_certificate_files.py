"""The certificate of a server in files: what is wrong with them is said, and new ones are taken up."""

import asyncio
import ssl
from pathlib import Path

import pytest
import trustme

from fractile.agent.usage.http import Address, HttpServer, PageRequest, Response
from fractile.errors import SetupError
from fractile.main.agent_usage import pair_of
from fractile.serving.certificate_files import Pair


def written(authority: trustme.CA, folder: Path) -> Pair:
    pair, made = Pair(folder / "tls.crt", folder / "tls.key"), authority.issue_cert("127.0.0.1")
    pair.cert.write_bytes(made.cert_chain_pems[0].bytes())
    pair.key.write_bytes(made.private_key_pem.bytes())
    return pair


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())


async def serial(port: int, authority: trustme.CA) -> str:
    """Of the certificate that a new connection gets."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(authority))
    found: str = writer.get_extra_info("ssl_object").getpeercert()["serialNumber"]
    writer.close()
    return found


async def test_files_that_change_are_served_to_new_connections_and_half_a_change_is_not(tmp_path: Path) -> None:
    async def page(_: PageRequest) -> Response:
        return Response(b"here\n")

    authority = trustme.CA()
    pair = written(authority, tmp_path)
    context = pair.context()
    server = HttpServer(Address("127.0.0.1", 0), {"/": page}, tls=context)
    tasks = [asyncio.create_task(c) for c in (server.run(), pair.renew(context, every=0.02))]
    try:
        await asyncio.wait_for(server.listening.wait(), 10)
        before = await serial(server.port, authority)
        pair.cert.write_bytes(authority.issue_cert("127.0.0.1").cert_chain_pems[0].bytes())
        await asyncio.sleep(0.2)
        assert await serial(server.port, authority) == before
        written(authority, tmp_path)
        async with asyncio.timeout(10):
            while await serial(server.port, authority) == before:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_files_that_nobody_can_be_served_with_are_named(tmp_path: Path) -> None:
    pair = written(trustme.CA(), tmp_path)
    with pytest.raises(SetupError, match=r"gone\.crt does not exist"):
        pair_of(tmp_path / "gone.crt", pair.key)
    with pytest.raises(SetupError, match="give both or neither"):
        pair_of(pair.cert, None)
    pair.key.write_bytes(trustme.CA().issue_cert("x").private_key_pem.bytes())
    with pytest.raises(SetupError, match="are not a PEM certificate and its key"):
        pair_of(pair.cert, pair.key)
    assert pair_of(None, None) is None
