"""Wiring of one term of leadership, rebuilt for each: what it knows, decides, watches and answers.

    watches ──> bookkeeping (ledger, waiting pods) ──> deciders (node, cards, bind) ──> answers (extender, webhook)

Each module builds one of these from the ones before it; ``lead`` runs them all.
"""
