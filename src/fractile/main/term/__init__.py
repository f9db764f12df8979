"""Wiring of one term of lead, made anew for each: what it knows, what it decides, what it watches, what it answers.

    watches ──> bookkeeping (ledger, waiting pods) ──> deciders (node, cards, bind) ──> answers (extender, webhook)

Each module builds one of these and is given those before it; ``lead`` runs them all.
"""
