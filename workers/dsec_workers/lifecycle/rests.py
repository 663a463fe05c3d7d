"""How long the loop rests between two rounds: what happens in a burst is looked at together. Pure."""

REST_SECONDS, LONGEST_REST_SECONDS = 0.02, 0.2
QUICK_ROUNDS = 5
"""What follows from one event, a gang's end or an eviction, comes in no more rounds than that."""


def rest_after(took: float, *, at_least: float = REST_SECONDS) -> float:
    """Seconds of rest after a round that `took` so long: twice that, since a round looks at every gang that is under
    way, and thousands must not be all that is done.
    """
    return min(LONGEST_REST_SECONDS, max(at_least, 2 * took))


def least_rest(busy_rounds: int) -> float:
    """Seconds of rest at least, after so many rounds of which none had to wait for news.

    In a steady flow rounds become fewer; whoever comes out of a calm finds them as quick as ever.
    """
    return min(LONGEST_REST_SECONDS, REST_SECONDS * float(2 ** min(10, max(0, busy_rounds - QUICK_ROUNDS))))
