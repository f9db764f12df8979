"""Pure decisions: which cards, which nodes. Functions of their arguments only; ties are total and stated.

The extender, the agent's checks, inspect and the simulator all decide through these.
"""
