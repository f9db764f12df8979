"""Every decoder against random and mutated bytes: found by reflection, so that a new one cannot be forgotten."""
