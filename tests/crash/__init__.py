"""The systematic crash suite: every fault point × every way to fail at it, and what must hold afterwards.

`stories` reach the points, `world` strikes and restarts, `invariants` judge, `matrix` generates the cases.
"""
