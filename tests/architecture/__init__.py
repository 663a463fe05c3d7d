"""The rules that hold the house together, read from the source."""
