"""PID 1 of a member's pod: an outpost of the gang.

Member 0's outpost is the gang's supervisor, the very one that a gang on one machine has; the others' hold their member
and pass on what is said: orders and signals from the supervisor, the gang channel of their ranks, files both ways.
`leader` and `follower` are the two; `door`, `parcels`, `relay`, `identity`, `observed` and `termination` their parts.
"""
