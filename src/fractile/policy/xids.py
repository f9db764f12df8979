"""What NVIDIA's XID numbers mean for a card that many pods share.

Source: NVIDIA, "Xid Errors" and its catalog (docs.nvidia.com/deploy/xid-errors): meaning and recommended action. The
wording is ours, and so is the line between a program's fault and a card's: a program must never be able to take a card
from its neighbours. So 109, for which NVIDIA recommends a reset, counts as the program's fault here, as in NVIDIA's
device plugin.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec


class XidKind(StrEnum):
    """What to do about an XID."""

    APPLICATION = "application"  # a program's own error; the card is fine
    NOTE = "note"  # the card repaired itself, or other readings decide
    PASSES = "passes"  # the card recovers by itself; it is watched for a while
    RESET = "reset"  # the card must be reset before it is used again
    REPLACE = "replace"  # the hardware or its power is faulty and must be inspected


class Xid(msgspec.Struct, frozen=True):
    kind: XidKind
    text: str


def _all(kind: XidKind, texts: Mapping[int, str]) -> dict[int, Xid]:
    return {number: Xid(kind, text) for number, text in texts.items()}


XIDS: Mapping[int, Xid] = {
    **_all(
        XidKind.APPLICATION,
        {
            8: "a channel of a program stopped",
            11: "a program sent invalid commands",
            13: "a program's kernel raised an exception, such as an access out of bounds",
            25: "a program sent an illegal command stream",
            31: "a program touched memory that is not mapped",
            32: "a program's command stream is damaged",
            43: "a program's work was stopped after its own error",
            45: "work of a program was cleared away after an earlier error, or because it was killed",
            68: "the video decoder met an error in a program's stream",
            69: "a program used an engine in a way that it does not support",
            109: "a program's context could not be switched away in time",
        },
    ),
    **_all(
        XidKind.NOTE,
        {
            63: "a memory row or page was marked for replacement; the next reset replaces it",
            93: "the card's configuration memory was written often; nothing is broken",
            121: "a link between CPU and GPU corrected an error",
            154: "the driver changed its advice on how to recover the card",
            156: "a part of the card was retired",
        },
    ),
    **_all(
        XidKind.PASSES,
        {
            37: "the driver's firmware met an error",
            38: "the driver's firmware met an error",
            39: "copy engine 0 met an error",
            40: "copy engine 1 met an error",
            41: "copy engine 2 met an error",
            44: "the graphics engine failed while it switched contexts",
            74: "an NVLink connection met an error",
            92: "many memory errors were corrected in a short time",
            94: "a memory error could not be corrected; it was contained to the program that it hit",
        },
    ),
    **_all(
        XidKind.RESET,
        {
            46: "the card stopped processing",
            48: "a memory error could not be corrected",
            58: "the memory interface is unstable",
            61: "the card's power controller stopped at a breakpoint",
            62: "the card's power controller halted",
            79: "the card has fallen off the bus",
            80: "data reached the card damaged",
            95: "a memory error could not be corrected and may have hit any program",
            110: "the card's security unit met a fault",
            119: "the card's system processor (GSP) does not answer the driver",
            120: "the card's system processor (GSP) met an error",
            122: "the power controller could not read its memory",
            123: "the power controller could not write its memory",
            136: "a link between chips could not be trained",
            140: "a memory error was not recovered",
            143: "the card could not be initialised",
            145: "an NVLink connection met an error in its receiver",
            149: "an NVLink connection met an error in its network layer",
            158: "the card did not answer in time, for good",
        },
    ),
    **_all(
        XidKind.REPLACE,
        {
            54: "the auxiliary power cable is not connected",
            64: "a memory row or page could not be marked for replacement",
            157: "a part of the card could not be retired",
        },
    ),
}


def lookup(number: int, *, ignored: frozenset[int], added: frozenset[int]) -> Xid:
    """Look up an XID in the table, with the site's own changes. An unknown number takes the card out of service for a
    while: an idle card is better than pods on a broken one. ``ignored`` overrides that."""
    known = XIDS.get(number, Xid(XidKind.PASSES, "an error that this version of Fractile does not know"))
    if number in ignored:
        return Xid(XidKind.APPLICATION if known.kind is XidKind.APPLICATION else XidKind.NOTE, known.text)
    if number in added and known.kind not in (XidKind.RESET, XidKind.REPLACE):
        return Xid(XidKind.RESET, known.text)
    return known
