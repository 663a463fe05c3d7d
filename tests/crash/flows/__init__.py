"""Flows of the crash stories, deployed from here as a user's would be."""
