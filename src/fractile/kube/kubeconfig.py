"""Reads a kubeconfig (or several, merged as kubectl merges them) into Credentials.

Format: the v1 Config type of Kubernetes' client-go, tools/clientcmd/api/v1. Unsupported fields (proxies, impersonation,
auth-provider) are refused by name: ignoring them would contact the wrong server as the wrong user.
"""

import base64
import binascii
import functools
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from fractile.errors import SetupError
from fractile.kube.credentials import Credentials, present, read_file, trust
from fractile.kube.exec_plugin import ExecConfig, ExecToken
from fractile.kube.tokens import FileToken, NoToken, StaticToken, TokenSource


class _Spelled(msgspec.Struct, rename="kebab", frozen=True, kw_only=True):
    pass


class _Cluster(_Spelled, frozen=True):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""


class _User(_Spelled, frozen=True):
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    exec: ExecConfig | None = None
    as_: str = msgspec.field(default="", name="as")
    username: str = ""
    auth_provider: dict[str, object] | None = None


class _Context(_Spelled, frozen=True):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(msgspec.Struct, frozen=True):
    name: str
    cluster: _Cluster = _Cluster()


class _NamedUser(msgspec.Struct, frozen=True):
    name: str
    user: _User | None = None


class _NamedContext(msgspec.Struct, frozen=True):
    name: str
    context: _Context = _Context()


class _Config(_Spelled, frozen=True):
    current_context: str = ""
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None


class _Here(msgspec.Struct, frozen=True):
    """An entry and the file it came from: relative paths start at that file's folder."""

    file: Path
    config: _Config


_Named = TypeVar("_Named", _NamedCluster, _NamedUser, _NamedContext)


def credentials(files: list[Path], environ: Mapping[str, str], context: str = "") -> Credentials:
    """The credentials of ``context``; of the current context when it is empty."""
    parts = [_Here(f, _read(f)) for f in files if len(files) == 1 or f.exists()]
    names = ", ".join(str(f) for f in files)
    current = context or next((p.config.current_context for p in parts if p.config.current_context), "")
    if not current:
        raise SetupError(f"{names} names no current context; choose one with `kubectl config use-context`")
    _, chosen = _find([(p.file, p.config.contexts) for p in parts], current, "context", names)
    named = chosen.context
    at, cluster = _find([(p.file, p.config.clusters) for p in parts], named.cluster, "cluster", names)
    if named.user:
        user_at, user = _find([(p.file, p.config.users) for p in parts], named.user, "user", names)
        identity = user.user or _User()
    else:
        user_at, identity = at, _User()
    _refuse_unsupported(cluster.cluster, identity, names)
    return _build(cluster.cluster, at, identity, user_at, named.namespace or "default", environ)


def _build(
    cluster: _Cluster, cluster_at: Path, user: _User, user_at: Path, namespace: str, environ: Mapping[str, str]
) -> Credentials:
    tls: ssl.SSLContext | None = None
    bare: Callable[[], ssl.SSLContext | None] = _none
    if cluster.server.startswith("https://"):
        ca = _bytes(
            cluster.certificate_authority_data, cluster.certificate_authority, cluster_at, "certificate-authority"
        )
        bare = functools.partial(trust, ca=ca, verify=not cluster.insecure_skip_tls_verify)
        tls = bare()
        certificate = _bytes(user.client_certificate_data, user.client_certificate, user_at, "client-certificate")
        key = _bytes(user.client_key_data, user.client_key, user_at, "client-key")
        if bool(certificate) != bool(key):
            raise SetupError(f"{user_at} gives a client certificate without its key, or only the key; give both")
        if certificate:
            present(tls, certificate, key)
    source: TokenSource = NoToken()
    if user.token:
        source = StaticToken(user.token)
    elif user.token_file:
        source = FileToken(user_at.parent / user.token_file)
    elif user.exec is not None:
        source = ExecToken(user.exec, folder=user_at.parent, environ=environ, server=cluster.server, tls=tls)
    return Credentials(
        cluster.server,
        tls=tls,
        token=source,
        namespace=namespace,
        server_name=cluster.tls_server_name,
        bare=bare,
    )


def _none() -> None:
    return None


def _read(file: Path) -> _Config:
    text = read_file(file, "the kubeconfig")
    try:
        content = _content(text, file)
        return _Config() if content is None else msgspec.convert(content, _Config)
    except msgspec.ValidationError as e:
        raise SetupError(f"the kubeconfig {file} is malformed: {e}") from None


def _content(text: bytes, file: Path) -> object:
    """The file's content. JSON is YAML too; `fractile up` writes JSON, for which PyYAML's 4 MB are not needed."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    import yaml  # imported here: see above

    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise SetupError(f"the kubeconfig {file} is not YAML: {' '.join(str(e).split())}") from None


def _find(lists: list[tuple[Path, list[_Named] | None]], name: str, what: str, names: str) -> tuple[Path, _Named]:
    for file, entries in lists:
        for entry in entries or []:
            if entry.name == name:
                return file, entry
    known = ", ".join(sorted({e.name for _, entries in lists for e in entries or []})) or "none"
    raise SetupError(f"{names} has no {what} {name!r}; it has: {known}")


def _bytes(data: str, path: str, at: Path, what: str) -> bytes:
    """PEM given inline (base64) or by path; empty when neither is given."""
    if data:
        try:
            return base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            raise SetupError(f"{what}-data in {at} is not base64; write the kubeconfig again") from None
    return read_file(at.parent / path, f"the {what}") if path else b""


def _refuse_unsupported(cluster: _Cluster, user: _User, names: str) -> None:
    if not cluster.server:
        raise SetupError(f"{names} gives the cluster no server address; add `server: https://...`")
    for used, what in (
        (cluster.proxy_url, "proxy-url"),
        (user.as_, "impersonation (as)"),
        (user.username, "a user name and password, which Kubernetes removed in 1.19"),
        (user.auth_provider, "auth-provider, which Kubernetes removed in 1.26; use an exec plugin"),
    ):
        if used:
            raise SetupError(f"{names} asks for {what}; Fractile does not support it")
