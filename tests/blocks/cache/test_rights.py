"""A copy that is here is nobody's right to read it: whoever was not let in by the origin asks there first."""

from dataclasses import replace

import pytest

from dsec_blocks.cache import Revalidate
from dsec_blocks.cache.errors import OriginRefused, OriginUnreachable
from dsec_blocks.cache.origins.paths import PathOrigin
from dsec_blocks.cache.store.refs import MOST_SEEN, Ref
from tests.blocks.cache.conftest import Place


class Refusing(PathOrigin):
    def list(self, uri, **patterns):
        raise OriginRefused(f"{uri}: the store refuses these credentials")


class Away(PathOrigin):
    def list(self, uri, **patterns):
        raise OriginUnreachable(f"{uri}: the origin does not answer")


@pytest.mark.parametrize("how", list(Revalidate))
def test_who_may_not_read_at_the_origin_is_refused_what_another_has_fetched(place: Place, how: Revalidate) -> None:
    uri = place.put("secret", weights_bin=b"private")
    owner = place.cache(revalidate=how)
    owner.acquire(uri).release()
    stranger = replace(owner, identity="somebody else", origin_of=lambda _: Refusing())
    with pytest.raises(OriginRefused):
        stranger.acquire(uri)
    assert not list(owner.store.layout.leases.iterdir()), "nothing is held by who was refused"


def test_who_may_read_asks_the_origin_once_and_fetches_nothing(place: Place) -> None:
    uri = place.put("shared", weights_bin=b"public")
    first = place.cache()
    first.acquire(uri).release()
    second = replace(first, identity="a second one")
    with second.acquire(uri) as lease:
        assert lease.acquired.was_resident
    away = replace(second, origin_of=lambda _: Away())
    with away.acquire(uri) as lease:
        assert not lease.acquired.stale, "within the time to live nobody is asked"


def test_while_the_origin_is_away_only_who_was_let_in_before_gets_the_copy(place: Place) -> None:
    uri = place.put("secret", weights_bin=b"private")
    owner = replace(place.cache(revalidate=Revalidate.ALWAYS), identity="owner")
    owner.acquire(uri).release()
    with replace(owner, origin_of=lambda _: Away()).acquire(uri) as lease:
        assert lease.acquired.stale
    with pytest.raises(OriginUnreachable):
        replace(owner, identity="stranger", origin_of=lambda _: Away()).acquire(uri)


def test_a_right_is_as_old_as_its_own_last_question(place: Place) -> None:
    """Somebody else's fresh comparison does not stand in for the own one."""
    uri = place.put("secret", weights_bin=b"private")
    owner = replace(place.cache(ttl_seconds=100), identity="owner")
    guest = replace(owner, identity="guest")
    owner.acquire(uri).release()
    guest.acquire(uri).release()
    place.clock.advance(99)
    owner_again = replace(owner, settings=replace(owner.settings, revalidate=Revalidate.ALWAYS))
    owner_again.acquire(uri).release()
    place.clock.advance(2)
    with pytest.raises(OriginRefused):
        replace(guest, origin_of=lambda _: Refusing()).acquire(uri)


def test_a_ref_remembers_a_bounded_number_of_identities() -> None:
    ref = Ref(uri="s3://b/x", include=(), exclude=(), bundle="b", size_bytes=1, files=1, checked_at=0, fetched_at=0)
    for number in range(MOST_SEEN + 5):
        ref = ref.compared(f"user-{number}", at=float(number))
    assert len(ref.seen_by) == MOST_SEEN and "user-0" not in ref.seen_by and ref.checked_at == MOST_SEEN + 4
