"""One file a schema revision; a published one never changes again."""
