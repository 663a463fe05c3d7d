"""The life of a run, one concept a module; `loop` puts them together, `term` is what they share."""
