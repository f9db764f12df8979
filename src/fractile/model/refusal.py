"""A refusal as a value: a constant code for programs to compare, and a sentence with numbers for the user."""

from enum import StrEnum

import msgspec

from fractile.model.words import LONGEST_SENTENCE, quoted, unformatted


class Code(StrEnum):
    """Why a node, a pod or a bind was refused."""

    NO_ROOM = "no-room"  # would fit if other pods left: preemption and waiting help
    TOO_LARGE = "too-large"  # no card of the node can ever serve it
    NO_SUCH_CARD = "no-such-card"  # the pod's selector admits no card of the node
    NO_CLASS = "no-class"  # the requested class does not exist, or matches nothing in the cluster
    NO_CARDS = "no-cards"  # the node's agent has reported no cards (yet)
    QUOTA = "quota"  # the namespace's quota: preempting pods of others would not help
    MALFORMED = "malformed"  # the pod's own request makes no sense
    NOT_OURS = "not-ours"  # the pod names none of our resources
    GONE = "gone"  # the pod or the node was deleted meanwhile
    ELSEWHERE = "elsewhere"  # the pod is already bound to another node


RESOLVABLE = frozenset({Code.NO_ROOM, Code.NO_CARDS})
"""Refusals that a change of the cluster, preemption included, can turn into a yes on the same node."""


class Refusal(msgspec.Struct, frozen=True):
    """A refusal with its reason. ``message`` is one sentence without a final stop, ready for a pod event.

    Even if it quotes foreign text, it is one line of printable characters without a percent sign, and no longer than
    LONGEST_SENTENCE.
    """

    code: Code
    message: str

    def __post_init__(self) -> None:
        if len(self.message) > LONGEST_SENTENCE or not self.message.isprintable():
            msgspec.structs.force_setattr(self, "message", quoted(self.message, LONGEST_SENTENCE))
        if "%" in self.message:
            msgspec.structs.force_setattr(self, "message", unformatted(self.message))

    @property
    def resolvable(self) -> bool:
        return self.code in RESOLVABLE
