"""Use of cards that no placement covers: found, reported, and ended as ``--outside-ledger`` says."""
