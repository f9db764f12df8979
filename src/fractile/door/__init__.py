"""How connections come in: accepted one by one, counted, and given a place before they cost anything.

Before it: the kernel's queue. After it: a protocol of ``main`` (extender, webhook) or ``agent`` (the agent's page),
which reads requests and identifies the caller.
"""
