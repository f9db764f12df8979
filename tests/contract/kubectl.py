"""kubectl on the real API server, with the manifests of deploy/ applied; also as somebody else."""

import json
import os
import subprocess

from fractile.lab.cluster import objects
from fractile.lab.machine import programs
from tests.contract.real_apiserver import RealApiServer

CRDS = ("extendedresources.fractile.dev", "resourceclasses.fractile.dev")
_WAIT = 60.0


class Kubectl:
    """kubectl as an administrator of the server."""

    def __init__(self, program: str, server: RealApiServer, *who: str) -> None:
        self._program = program
        self._server = server
        self._who = who
        self._env = {"PATH": os.environ["PATH"], "KUBECONFIG": str(server.kubeconfig), "HOME": str(server.ca.parent)}

    @property
    def server(self) -> RealApiServer:
        return self._server

    def as_user(self, name: str, *groups: str, node: str = "") -> "Kubectl":
        """Impersonating a user; ``node``: with the claim that a token of a pod there has."""
        extra = (f"--as-user-extra=authentication.kubernetes.io/node-name={node}",) if node else ()
        return Kubectl(self._program, self._server, f"--as={name}", *(f"--as-group={g}" for g in groups), *extra)

    def with_token(self, token: str) -> "Kubectl":
        """As whoever the token says."""
        return Kubectl(self._program, self._server, f"--token={token}", "--kubeconfig=/dev/null", *self._reach)

    @property
    def _reach(self) -> tuple[str, str]:
        return f"--server={self._server.url}", f"--certificate-authority={self._server.ca}"

    def tell(self, *args: str, stdin: object = "") -> subprocess.CompletedProcess[str]:
        text = stdin if isinstance(stdin, str) else json.dumps(stdin)
        return subprocess.run(
            [self._program, *self._who, *args],
            input=text,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=_WAIT,
            check=False,
        )

    def __call__(self, *args: str, stdin: object = "") -> str:
        done = self.tell(*args, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def apply(self, thing: object) -> str:
        return self("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=thing)

    def refused(self, thing: object) -> str:
        """Why the server does not take it."""
        done = self.tell("apply", "--server-side", "--dry-run=server", "-f", "-", stdin=thing)
        assert done.returncode != 0, "it was taken"
        return done.stderr


def with_manifests(server: RealApiServer) -> Kubectl | None:
    """An administrator's; None where kubectl is not built."""
    found = programs.find(os.environ, ("kubectl",))
    if found is None:
        return None
    told = Kubectl(found["kubectl"], server)
    told.apply(objects.manifests())
    for crd in CRDS:
        told("wait", "--for=condition=Established", f"crd/{crd}", "--timeout=30s")
    return told
