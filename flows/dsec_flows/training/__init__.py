"""Flows that train."""
