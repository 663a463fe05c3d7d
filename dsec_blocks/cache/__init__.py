"""Data that is already there when a job starts: content-addressed blobs on the node, filled from any origin."""
