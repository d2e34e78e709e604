"""From what a run left to a run: the record, its metrics' names, and what must be equal."""
