"""How reports read objects from the API server, and the errors when that fails."""

from collections.abc import Iterable
from typing import TypeVar

from fractile.errors import ApiError, SetupError, Unreachable
from fractile.kube.client import KubeClient
from fractile.wire.fractile.extended_resource import GROUP

_NAMED = 20  # names in a sentence

T = TypeVar("T")


async def read(client: KubeClient, path: str, type: type[T]) -> list[T]:
    """All objects; SetupError with the remedy when they cannot be read."""
    try:
        return (await client.list(path, type))[0]
    except Unreachable as e:
        raise no_answer(e) from None
    except ApiError as e:
        raise SetupError(_advice(e, path)) from None


def no_answer(error: Unreachable) -> SetupError:
    return SetupError(
        f"the cluster does not answer ({error}); start a local one with `fractile up`, or choose another with "
        "--kubeconfig, --context or --name"
    )


def one_of(what: str, wanted: str, known: Iterable[str]) -> None:
    """Raise SetupError with the known names when ``wanted`` is not among them."""
    names = sorted(set(known))
    if wanted and wanted not in names:
        raise SetupError(f"there is no {what} {wanted!r}; there are: {listed(names) or 'none'}")


def listed(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _advice(error: ApiError, path: str) -> str:
    if error.code == 401:
        return "the cluster does not accept these credentials; renew them or choose others with --kubeconfig"
    if error.code == 403:
        return f"these credentials may not read what is needed ({error.message}); ask for the right to list it"
    if error.code == 404 and f"/apis/{GROUP}/" in path:
        kind = path.rpartition("/")[2]
        return f"Fractile is not installed on this cluster (no {kind}.{GROUP}); apply deploy/manifests first"
    return f"{error}; path {path}"
