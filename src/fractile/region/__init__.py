"""The two files that a container shares with its node: ``limits``, what it may use; ``shared/region``, what it uses.

Before it: ``agent``, which puts both into the token directory when it grants a container its cards. After it: the
library in the container, which reads the first and writes the second. ``layout`` is generated from
native/region/schema.toml, as is the C header, so the two sides cannot disagree.
"""
