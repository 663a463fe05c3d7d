"""Programs for those who work on DSec itself; not shipped."""
