"""Event handlers of the control plane: each keeps the ledger, or what is known beside it, in step with the API."""
