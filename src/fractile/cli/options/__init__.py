"""Options and arguments that several commands share, with their completion."""
