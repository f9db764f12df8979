"""Pure decisions: which cards and which nodes. All are functions of their arguments only; ties are total and stated.

The extender, the agent's checks, ``inspect`` and the simulator all decide through this package.
"""
