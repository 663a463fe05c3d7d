"""Points outside a matrix are struck by name in some test, or excused here, each with the reason."""

from pathlib import Path

from tests.crash import cases

TESTS = Path(__file__).resolve().parents[1]
MATRICES = {
    "run": "test_matrix",
    "command": "test_commands and test_commands_reached",
    "cluster level": "test_cluster_level",
    "node cache": "test_cache",
    "kubernetes": "tests/workers/clusters/kubernetes/test_crashes.py and test_faults.py",
}
"""Scopes whose points are generated, with the suite that strikes or reaches each of them."""
UNSTRUCK = {
    "agent.address.write": "where an agent listens: the next agent writes it anew, whole or not at all",
    "agent.token.write": "as the address; a token that was written stays the token",
    "agent.lock": "taken before the agent does anything; the kernel gives it back",
    "agent.prefetch.write": "an order that was not taken down has not been acknowledged: who asked asks again",
    "agent.prefetch.remove": "an order that stays is carried out again, and finds its bundle there",
    "ledger.prefetch.asked_progress": "a figure on its way to its end; the next one replaces it",
    "checkpoint.janitor.abort": "a person or the next janitor comes again; what is a day old is in nobody's way",
    "checkpoint.janitor.remove": "as above",
    "gang.local_rank.run": "a local call: nothing durable, and the caller sees the failure",
    "gang.error.write": "as above",
    "gang.result.write": "as above",
    "pool.nvml.probe": "a read in a child that may be killed; needs a GPU",
    "supervisor.exit.forgotten": "a race that no test wins for certain: both sides remove the same file",
    "supervisor.late_rank.term": "a race that no test wins for certain: a rank that starts while its gang ends",
}


def test_every_point_outside_a_matrix_is_named_in_a_test_or_excused() -> None:
    outside = {name for name, scope in cases.scopes().items() if scope not in MATRICES}
    text = "\n".join(
        path.read_text()
        for pattern in ("*.py", "reached*.json")
        for path in TESTS.rglob(pattern)
        if path != Path(__file__).resolve()
    )
    unnamed = {name for name in outside if name not in text}
    assert not unnamed - set(UNSTRUCK), "strike them in a test, or say here why not"
    assert not set(UNSTRUCK) - unnamed, "excused, though there is no such point, or a test names it"
