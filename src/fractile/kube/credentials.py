"""Our identity for the API server: from a kubeconfig, or from the service account of a pod.

Every fault in these files was made by a person who can correct it, so each is a SetupError that names the file and the
remedy. Tokens are read again: service account tokens rotate about hourly, and exec plugins give theirs an expiry.
"""

import os
import ssl
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from fractile.errors import SetupError
from fractile.kube.tokens import FileToken, NoToken, TokenSource

SERVICE_ACCOUNT = "var/run/secrets/kubernetes.io/serviceaccount"


class Credentials:
    """The server's address, how to trust it, and where the bearer token comes from. ``bare`` creates a context with the
    same trust as ``tls`` but without a client certificate."""

    def __init__(
        self,
        server: str,
        *,
        tls: ssl.SSLContext | None = None,
        token: TokenSource | None = None,
        namespace: str = "default",
        server_name: str = "",
        bare: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        if not _is_address(server):
            raise SetupError(
                f"the server address {server!r} is not of the form https://HOST:PORT; correct the kubeconfig"
            )
        self.server = server.rstrip("/")
        self.tls = tls
        self.token: TokenSource = token or NoToken()
        self.namespace = namespace
        self.server_name = server_name
        self._bare = bare

    def bearing(self, token: TokenSource) -> "Credentials":
        """The same server with only that token as the identity, without our client certificate."""
        return Credentials(self.server, tls=self._bare(), token=token, server_name=self.server_name)


def _is_address(server: str) -> bool:
    try:
        url = urlsplit(server)
        return url.scheme in ("https", "http") and bool(url.hostname) and (url.port is None or url.port > 0)
    except ValueError:  # a port that is not a number, brackets that do not match
        return False


def load(
    kubeconfig: Path | None = None,
    *,
    context: str = "",
    environ: Mapping[str, str] | None = None,
    root: Path = Path("/"),
) -> Credentials:
    """Credentials from ``kubeconfig``; when None: from $KUBECONFIG, then in-cluster, then ~/.kube/config.

    ``context`` chooses another context than the current one; it needs a kubeconfig, so in-cluster is skipped.
    """
    env = os.environ if environ is None else environ
    if kubeconfig is not None:
        return _from_kubeconfig([kubeconfig], env, context)
    named = [Path(p) for p in env.get("KUBECONFIG", "").split(os.pathsep) if p]
    if named:
        return _from_kubeconfig(named, env, context)
    if not context and env.get("KUBERNETES_SERVICE_HOST") and (root / SERVICE_ACCOUNT / "token").exists():
        return in_cluster(env, root=root)
    home = Path(env.get("HOME", "/root")) / ".kube" / "config"
    if home.exists():
        return _from_kubeconfig([home], env, context)
    raise SetupError(
        f"there is no kubeconfig: give --kubeconfig, set KUBECONFIG, or create {home}; `fractile up` starts a local "
        "cluster"
    )


def in_cluster(environ: Mapping[str, str], *, root: Path = Path("/")) -> Credentials:
    """The service account that kubelet mounts into every pod."""
    folder = root / SERVICE_ACCOUNT
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    namespace = folder / "namespace"
    tls = trust(ca=read_file(folder / "ca.crt", "the cluster's certificate authority"))
    return Credentials(
        f"https://{f'[{host}]' if ':' in host else host}:{port}",
        tls=tls,
        bare=lambda: tls,
        token=FileToken(folder / "token"),
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
    )


def trust(*, ca: bytes = b"", certificate: bytes = b"", key: bytes = b"", verify: bool = True) -> ssl.SSLContext:
    """A TLS context that trusts ``ca`` (empty: the system's) and shows ``certificate``; all are PEM."""
    try:
        context = ssl.create_default_context(cadata=ca.decode("ascii") if ca else None)
    except (ssl.SSLError, ValueError) as e:
        raise SetupError(
            f"the certificate authority is not a PEM certificate ({e}); write the kubeconfig again"
        ) from None
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate or key:
        present(context, certificate, key)
    return context


def present(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Make the context show this client certificate on connections that it opens from now on."""
    # OpenSSL reads keys from files only. The file is private (mode 0600) and removed when this returns.
    with tempfile.NamedTemporaryFile(prefix="fractile-") as pem:
        pem.write(certificate + b"\n" + key)
        pem.flush()
        try:
            context.load_cert_chain(pem.name)
        except (ssl.SSLError, ValueError) as e:
            raise SetupError(f"the client certificate and key do not belong together or are not PEM ({e})") from None


def read_file(path: Path, what: str) -> bytes:
    """The bytes of a user's file. Raises SetupError when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as e:
        raise SetupError(f"cannot read {what} {path}: {e.strerror}; check the path and its permissions") from None


def _from_kubeconfig(files: list[Path], environ: Mapping[str, str], context: str) -> Credentials:
    # Imported here: PyYAML takes 5 MB that an agent with a service account never needs.
    from fractile.kube import kubeconfig

    return kubeconfig.credentials(files, environ, context)
