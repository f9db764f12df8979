"""Controllers of ``ResourceClass`` objects: names, capacity, counts, status and defaults of each class."""
