"""What happened is told once, in order, whoever wrote it and however often the journal was turned."""

from dsec_blocks.cache.accounting import starts_of
from dsec_blocks.cache.store import events
from tests.blocks.cache.conftest import KB, Place


def test_an_acquire_tells_what_was_here_and_how_long_it_took(place: Place) -> None:
    uri = place.put("model", weights_bin=b"w" * 1000)
    cache = place.cache()
    cache.prefetch(uri)
    cache.acquire(uri, who="run 7").release()
    found, _ = events.events_since(cache.store.layout, None)
    assert [(e["background"], e["bytes"], e["origin"], e["cluster"]) for e in found] == [
        (True, 1000, 1000, 0),
        (False, 1000, 0, 0),
    ]
    (start,) = starts_of(cache.store, "7")
    assert start["uri"] == f"file://{uri}"


def test_an_eviction_tells_its_policy_and_what_it_freed(place: Place) -> None:
    cache = place.cache(limit=100 * KB, policy="lru")
    for name in ("a", "b"):
        cache.acquire(place.put(name, x_bin=name.encode() * 60 * KB)).release()
    found, _ = events.events_since(cache.store.layout, None)
    assert [(e["policy"], e["bytes"]) for e in found if e["what"] == "evict"] == [("lru", 60 * KB)]


def test_reading_goes_on_where_it_stopped_also_over_a_turn(place: Place, monkeypatch) -> None:
    layout = place.cache().store.layout
    layout.prepare()
    monkeypatch.setattr(events, "TURN_BYTES", 100)
    read, position = [], None
    for number in range(40):
        events.note(layout, {"n": number})
        if number % 3 == 0:
            found, position = events.events_since(layout, position)
            read += [event["n"] for event in found]
    assert read == list(range(40))
    assert (layout.policy / "events.before").exists()


def test_a_line_that_is_still_being_written_is_read_when_it_is_whole(place: Place) -> None:
    layout = place.cache().store.layout
    layout.prepare()
    journal = layout.policy / "events"
    journal.write_bytes(b'{"n": 1}\n{"n": ')
    found, position = events.events_since(layout, None)
    assert found == [{"n": 1}]
    with journal.open("ab") as file:
        file.write(b"2}\nno json\n")
    found, _ = events.events_since(layout, position)
    assert found == [{"n": 2}]


def test_figures_that_cannot_be_written_fail_no_start(place: Place) -> None:
    uri = place.put("model", weights_bin=b"w")
    cache = place.cache()
    cache.store.prepare()
    (cache.store.layout.policy / "events").mkdir()
    cache.acquire(uri).release()
