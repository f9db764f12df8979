"""How connections come in: accepted one by one, counted, and given a place before anything is spent on them.

Before it: the kernel's queue. After it: a protocol of ``main`` (extender, webhook) or ``agent`` (the agent's page),
which reads requests and says who the caller is.
"""
