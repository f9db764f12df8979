"""A model of unlucky minutes: the real ledger, bind, assumed pods, repair, feeds, reflectors and lease of several
replicas on a played API server, with a judge over that server's own truth (``make model``).

    kernel      virtual time, and an event loop for each machine, which may be paused, with its clock or without
    store       what the API server holds: objects, revisions, what a watch tells of them
    server      how it answers: late, twice, not at all, after it has said that it failed
    players     users, kube-scheduler, kubelet and agents: one step each
    replica     the control plane's own objects, wired as ``main.control_plane`` wires them
    judge       what may never be, from the texts of the store alone; shares no code with the product
    episode     one short history, from a seed; ``shrink`` makes a failing one shorter
"""
