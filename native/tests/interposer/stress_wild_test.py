"""The stress run under drivers that take more than any bound. Memory held beyond the ledger is found, as by the node's
audit, and counts against the quota: at quiet points nothing is granted or shown as free beyond what is left."""

import sys

from stress_test import LIBRARY, run

SEEDS = range(1, 11)


def under_wild_policy(seed: int) -> None:
    status, (_, _, leaked, hangs, _, _), log = run(
        LIBRARY, PROCS="8", OPS="1500", KILLS="4", SEED=str(seed), POLICY=f"wild:{seed}"
    )
    assert (status, leaked, hangs) == (0, 0, 0), log[-3000:]


def main() -> int:
    failed = 0
    for seed in SEEDS:
        try:
            under_wild_policy(seed)
            print(f"ok   under_wild_policy_{seed}_excess_is_seen_and_answered_with_refusals", flush=True)
        except AssertionError as error:
            failed += 1
            print(f"FAIL under_wild_policy_{seed}_excess_is_seen_and_answered_with_refusals: {error}", flush=True)
    print(f"{len(SEEDS) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
