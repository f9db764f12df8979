"""Follows the file of sharing rules and the pools of the nodes, and sets the ledger's rule for each card.

Level-triggered: the file's text is compared every few seconds, which also detects how kubelet replaces a ConfigMap.
Failure rule: a file that is unreadable or invalid stops the program at its start; later it is logged once, and the
rules stay as they were. Rules are for pods that are still to be placed: running pods lose nothing.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from fractile.errors import FractileError, SetupError
from fractile.kube.pacing import Sleep
from fractile.kube.reflector import Gone
from fractile.ledger.ledger import Ledger
from fractile.model.sharing import SharingRule
from fractile.model.units import NodeName
from fractile.wire.files import sharing_file
from fractile.wire.kubernetes.objects import Node

_LOOK = 2.0  # seconds between two checks of the file

log = logging.getLogger(__name__)


class SharingRules:
    """``freed`` is called with every node where more might fit than before."""

    def __init__(
        self, file: Path, *, ledger: Ledger, freed: Callable[[NodeName], None], sleep: Sleep = asyncio.sleep
    ) -> None:
        self._file = file
        self._ledger = ledger
        self._freed = freed
        self._sleep = sleep
        self._pools: dict[str, str] = {}
        self._text = self._read()
        self._sharing = sharing_file.decode(self._text, str(file))
        self._rules: dict[
            tuple[str, str], SharingRule
        ] = {}  # by pool and model: asked for every card that is looked at
        self._told = ""
        ledger.share_by(self.rule, sized=self._sharing.sized)

    def rule(self, node: NodeName, model: str) -> SharingRule:
        """The rule for the cards of that model on that node."""
        key = (self._pools.get(node, ""), model)
        if key not in self._rules:
            self._rules[key] = self._sharing.rule(*key)
        return self._rules[key]

    async def run(self) -> None:
        """Check the file forever."""
        while True:
            await self._sleep(_LOOK)
            self.look()

    def look(self) -> None:
        """Apply what the file says now."""
        try:
            text = self._read()
            if text == self._text:
                return
            sharing = sharing_file.decode(text, str(self._file))
        except FractileError as e:
            if self._told != str(e):
                self._told = str(e)
                log.error("sharing rules stay as they were reason=%s", e)
            return
        self._text, self._sharing, self._told = text, sharing, ""
        self._rules.clear()
        log.info("sharing rules read file=%s", self._file)
        for node in self._ledger.share_by(self.rule, sized=sharing.sized):
            self._freed(node)

    def changed(self, node: Node) -> None:
        """Handle a node that appeared or changed, with or without the label."""
        self._put(NodeName(node.metadata.name), (node.metadata.labels or {}).get(sharing_file.POOL_LABEL, ""))

    def gone(self, node: Gone) -> None:
        self._put(NodeName(node.name), "")

    def _put(self, node: NodeName, pool: str) -> None:
        if self._pools.get(node, "") == pool:
            return
        if pool:
            self._pools[node] = pool
        else:
            del self._pools[node]
        self._ledger.reshare(node)
        self._freed(node)

    def _read(self) -> str:
        try:
            return self._file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as e:
            raise SetupError(f"the file of sharing rules {self._file} cannot be read: {e}") from None
