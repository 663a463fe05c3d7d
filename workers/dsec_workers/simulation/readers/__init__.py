"""Traces of several formats as jobs. Each reader refuses a bad line with one sentence that names it."""
