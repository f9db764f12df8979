"""Credentials: every fault a person can make in a kubeconfig is one sentence; rotation is noticed."""

import base64
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme
import yaml

from fractile.errors import SetupError
from fractile.kube import credentials
from fractile.kube.client import KubeClient
from fractile.kube.credentials import SERVICE_ACCOUNT, Credentials
from fractile.kube.tokens import FileToken
from fractile.wire.kubernetes.objects import Node
from tests.fakes.apiserver import FakeApiServer

Json = dict[str, Any]


@pytest.fixture(scope="module")
def pem() -> Json:
    authority = trustme.CA()
    issued = authority.issue_cert("admin@example.com")
    return {
        "ca": authority.cert_pem.bytes(),
        "certificate": issued.cert_chain_pems[0].bytes(),
        "key": issued.private_key_pem.bytes(),
    }


def config(cluster: Json | None = None, user: Json | None = None, **changes: object) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        **changes,
    }


def write(folder: Path, content: Json | str, name: str = "config") -> Path:
    file = folder / name
    file.write_bytes(content.encode() if isinstance(content, str) else msgspec.json.encode(content))
    return file


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def test_a_token_and_the_namespace_of_the_current_context(tmp_path: Path) -> None:
    found = credentials.load(write(tmp_path, config(user={"token": "secret"})))
    assert (found.server, found.namespace) == ("https://10.0.0.1:6443", "team")
    assert await found.token.token() == "secret"


async def test_a_kubeconfig_is_yaml(tmp_path: Path) -> None:
    text = """
        current-context: x
        contexts: [{name: x, context: {cluster: a, user: b}}]
        clusters: [{name: a, cluster: {server: 'http://127.0.0.1:8080/prefix/'}}]
        users: [{name: b, user: {token: t}}]
        preferences: {}
        extensions: [anything]
    """
    found = credentials.load(write(tmp_path, text))
    assert found.server == "http://127.0.0.1:8080/prefix"
    assert found.tls is None


@pytest.mark.parametrize(("spelled", "needed"), [("json", False), ("yaml", True)])
def test_a_kubeconfig_in_json_is_read_without_the_memory_of_pyyaml(tmp_path: Path, spelled: str, needed: bool) -> None:
    given = config(cluster={"server": "http://127.0.0.1:8080"}, user={"token": "secret"})
    file = write(tmp_path, given if spelled == "json" else yaml.safe_dump(given))
    program = (
        "import sys; from pathlib import Path; from fractile.kube import credentials; "
        "found = credentials.load(Path(sys.argv[1])); print(found.server, 'yaml' in sys.modules)"
    )
    said = subprocess.run(
        [sys.executable, "-c", program, str(file)], capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout.split() == ["http://127.0.0.1:8080", str(needed)]


def test_certificates_may_be_data_or_files_beside_the_kubeconfig(tmp_path: Path, pem: Json) -> None:
    for name, data in pem.items():
        (tmp_path / f"{name}.pem").write_bytes(data)
    files = config(
        {"certificate-authority": "ca.pem"}, {"client-certificate": "certificate.pem", "client-key": "key.pem"}
    )
    data = config(
        {"certificate-authority-data": encoded(pem["ca"])},
        {"client-certificate-data": encoded(pem["certificate"]), "client-key-data": encoded(pem["key"])},
    )
    for content in (files, data):
        found = credentials.load(write(tmp_path, content))
        assert found.tls is not None
        assert len(found.tls.get_ca_certs()) == 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "is not YAML"),
        ("[]", "is malformed"),
        ("", "names no current context"),
        ({**config(), "current-context": ""}, "names no current context"),
        ({**config(), "current-context": "prod"}, "has no context 'prod'; it has: here"),
        (config(clusters=[]), "has no cluster 'c'; it has: none"),
        (config(users=None), "has no user 'u'; it has: none"),
        (config(clusters="x"), "is malformed"),
        (config({"server": ""}), "no server address"),
        (config({"server": "10.0.0.1:6443"}), "is not of the form https://HOST:PORT"),
        (config({"server": "https://10.0.0.1:port"}), "is not of the form https://HOST:PORT"),
        (config({"server": "https://[::1"}), "is not of the form https://HOST:PORT"),
        (config({"server": "https://"}), "is not of the form https://HOST:PORT"),
        (config({"certificate-authority": "none.pem"}), "cannot read the certificate-authority"),
        (config({"certificate-authority-data": "%%%"}), "certificate-authority-data in .* is not base64"),
        (config({"certificate-authority-data": encoded(b"no pem")}), "not a PEM certificate"),
        (config(user={"client-certificate-data": encoded(b"x")}), "without its key"),
        (config(user={"client-key-data": encoded(b"x")}), "without its key"),
        (
            config(user={"client-certificate-data": encoded(b"x"), "client-key-data": encoded(b"y")}),
            "client certificate",
        ),
        (config({"proxy-url": "http://proxy"}), "proxy-url"),
        (config(user={"as": "root"}), "impersonation"),
        (config(user={"auth-provider": {"name": "gcp"}}), "exec plugin"),
        (config(user={"username": "me", "password": "x"}), "user name and password"),
        (config(user={"exec": {"command": "x", "interactiveMode": "Always"}}), "needs a terminal"),
    ],
)
def test_each_fault_of_a_kubeconfig_is_one_sentence(tmp_path: Path, content: Json | str, sentence: str) -> None:
    with pytest.raises(SetupError, match=sentence) as error:
        credentials.load(write(tmp_path, content))
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"cannot read the kubeconfig .*none: No such file or directory"):
        credentials.load(tmp_path / "none")


def test_nothing_at_all_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="give --kubeconfig, set KUBECONFIG"):
        credentials.load(environ={"HOME": str(tmp_path)}, root=tmp_path)


async def test_several_files_merge_and_the_first_to_name_a_thing_wins(tmp_path: Path, pem: Json) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "ca.pem").write_bytes(pem["ca"])
    first = write(tmp_path, {"current-context": "here", "users": [{"name": "u", "user": {"token": "first"}}]}, "a")
    second = write(folder, config({"certificate-authority": "ca.pem"}, {"token": "second"}), "b")
    paths = os.pathsep.join(map(str, (first, tmp_path / "missing", second)))
    found = credentials.load(environ={"KUBECONFIG": paths})
    assert await found.token.token() == "first"
    assert found.tls is not None
    assert len(found.tls.get_ca_certs()) == 1


async def test_the_order_is_the_argument_the_variable_the_pod_the_home(tmp_path: Path, pem: Json) -> None:
    account = tmp_path / "root" / SERVICE_ACCOUNT
    account.mkdir(parents=True)
    (tmp_path / ".kube").mkdir()
    (account / "ca.crt").write_bytes(pem["ca"])
    (account / "token").write_text("of the pod")
    (account / "namespace").write_text("system\n")
    argument = write(tmp_path, config(user={"token": "of the argument"}), "argument")
    variable = write(tmp_path, config(user={"token": "of the variable"}), "variable")
    write(tmp_path / ".kube", config(user={"token": "of the home"}))
    env = {"HOME": str(tmp_path), "KUBECONFIG": str(variable), "KUBERNETES_SERVICE_HOST": "fd00::1"}

    async def token(given: Path | None) -> str:
        return await credentials.load(given, environ=env, root=tmp_path / "root").token.token()

    assert await token(argument) == "of the argument"
    assert await token(None) == "of the variable"
    del env["KUBECONFIG"]
    assert await token(None) == "of the pod"
    in_cluster = credentials.load(environ=env, root=tmp_path / "root")
    assert (in_cluster.server, in_cluster.namespace) == ("https://[fd00::1]:443", "system")
    (account / "token").unlink()
    assert await token(None) == "of the home"


async def test_a_token_file_is_read_again_each_minute_and_after_a_rejection(tmp_path: Path) -> None:
    now = 1000.0
    file = tmp_path / "token"
    file.write_text("one\n")
    source = FileToken(file, clock=lambda: now)
    assert await source.token() == "one"
    file.write_text("two")
    assert await source.token() == "one"
    now += 61
    assert await source.token() == "two"
    file.write_text("three")
    assert source.rejected()
    assert await source.token() == "three"


@pytest.mark.parametrize("content", [b"", b"two\nlines", b"\xff", "ü".encode()], ids=["empty", "lines", "bytes", "ü"])
async def test_a_token_file_without_a_token_is_a_setup_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(SetupError, match="token file"):
        await FileToken(tmp_path / "token").token()


class Login:
    """A login program that counts its runs, and a kubeconfig that names it."""

    def __init__(self, folder: Path, body: str) -> None:
        self.runs = folder / "runs"
        self.runs.touch()
        program = folder / "login"
        program.write_text(
            f"#!{sys.executable}\nimport json, os, sys\nopen({str(self.runs)!r}, 'a').write('x')\n{body}\n"
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        spec = {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "./login",
            "args": ["one"],
            "env": [{"name": "EXTRA", "value": "two"}],
        }
        self.config = config({"server": "http://127.0.0.1:1"}, {"exec": spec})
        self.file = write(folder, self.config)

    @property
    def count(self) -> int:
        return len(self.runs.read_text())

    def load(self) -> Credentials:
        return credentials.load(self.file)


def printing(status: str) -> str:
    return f"print(json.dumps({{'apiVersion': 'client.authentication.k8s.io/v1', 'status': {status}}}))"


async def test_a_login_program_gets_its_arguments_and_variables(tmp_path: Path) -> None:
    said = "' '.join([*sys.argv[1:], os.environ['EXTRA'], json.loads(os.environ['KUBERNETES_EXEC_INFO'])['kind']])"
    login = Login(tmp_path, printing(f"{{'token': {said}}}"))
    assert await login.load().token.token() == "one two ExecCredential"


async def test_a_login_is_kept_until_shortly_before_it_expires(tmp_path: Path) -> None:
    login = Login(tmp_path, printing("{'token': 't', 'expirationTimestamp': '2999-01-01T00:00:00Z'}"))
    source = login.load().token
    for _ in range(3):
        await source.token()
    assert login.count == 1
    source.rejected()
    await source.token()
    assert login.count == 2


async def test_a_login_that_has_expired_is_made_again(tmp_path: Path) -> None:
    login = Login(tmp_path, printing("{'token': 't', 'expirationTimestamp': '2001-01-01T00:00:00Z'}"))
    source = login.load().token
    await source.token()
    await source.token()
    assert login.count == 2


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("sys.exit('please log in first')", "failed with status 1: please log in first"),
        ("print('hello')", "did not print an ExecCredential"),
        ("print('{}')", "neither a token nor a certificate"),
        (printing("{}"), "neither a token nor a certificate"),
    ],
)
async def test_each_fault_of_a_login_program_is_one_sentence(tmp_path: Path, body: str, sentence: str) -> None:
    with pytest.raises(SetupError, match=sentence):
        await Login(tmp_path, body).load().token.token()


async def test_a_missing_login_program_shows_its_install_hint(tmp_path: Path) -> None:
    spec = {"command": "fractile-no-such-login", "installHint": "get it\nfrom example.com"}
    with pytest.raises(SetupError, match=r"No such file or directory; get it from example.com"):
        await credentials.load(write(tmp_path, config(user={"exec": spec}))).token.token()


async def test_a_login_program_may_give_a_client_certificate(tmp_path: Path, pem: Json) -> None:
    status = f"{{'clientCertificateData': {pem['certificate'].decode()!r}, 'clientKeyData': {pem['key'].decode()!r}}}"
    login = Login(tmp_path, printing(status))
    write(tmp_path, {**login.config, "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}]})
    assert await login.load().token.token() == ""
    assert login.count == 1


async def test_a_kubeconfig_file_reaches_the_server(tmp_path: Path) -> None:
    async with FakeApiServer() as server:
        server.create("/api/v1/nodes", {"metadata": {"name": "n"}})
        async with KubeClient(credentials.load(server.write_kubeconfig(tmp_path / "config"))) as client:
            assert (await client.get("/api/v1/nodes/n", Node)).metadata.name == "n"
