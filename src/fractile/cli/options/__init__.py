"""Options and arguments that several commands take, with their completion."""
