"""``make chaos``: pods of all families come and go on a real local cluster while its programs are killed, paused and
cut off at random; at quiet points nothing may be over-allocated, leaked, killed or stuck. See docs/results/chaos.md.

    faults, pods, snapshot, invariants, settled               pure: what shall happen, what was seen, and what is wrong
    links, players, programs, wishes, seeing, rounds, run     proxies, processes, pods, looks at the cluster, the rounds
"""
