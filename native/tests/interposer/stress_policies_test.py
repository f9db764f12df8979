"""The stress run under driver policies that the library cannot know: twenty seeded policies, few and many processes.
Whatever the driver chooses, the quota is not exceeded, nothing is refused or kept without need, and nothing hangs."""

import sys

from stress_test import LIBRARY, run

POLICIES = range(1, 21)


def under_policy(policy: int) -> None:
    shape = {"PROCS": "2", "THREADS": "8"} if policy % 2 else {"PROCS": "16", "THREADS": "2"}
    status, (over, false_oom, leaked, hangs, _, _), log = run(
        LIBRARY, **shape, OPS="800", KILLS="4", SEED=str(policy), POLICY=str(policy)
    )
    assert (status, over, false_oom, leaked, hangs) == (0, 0, 0, 0, 0), log[-2000:]


def main() -> int:
    failed = 0
    for policy in POLICIES:
        try:
            under_policy(policy)
        except AssertionError as error:
            failed += 1
            print(f"FAIL under_policy_{policy}_nothing_is_found: {error}", flush=True)
    if not failed:
        print(f"ok   under_each_of_{len(POLICIES)}_policies_nothing_is_found")
    print(f"{len(POLICIES) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
