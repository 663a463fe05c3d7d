"""Who carries it out: the long-running processes."""
