"""Small questions to an HTTP origin (a listing, a size, where a file really is), asked until they are answered."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urljoin

from tenacity import retry, retry_if_exception_type, stop_before_delay, wait_random_exponential

from dsec_blocks.cache.errors import BundleMissing, OriginChanged, OriginError, OriginUnreachable
from dsec_blocks.cache.origins.connections import Connections
from dsec_blocks.cache.origins.ranges import judge

PATIENCE_SECONDS = 30.0
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS = 5
_LARGEST_ANSWER = 64 * 2**20
Answered = TypeVar("Answered")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Status, headers and body of an answer, and the address that gave it after all redirects."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str


def ask(
    connections: Connections, url: str, headers: Mapping[str, str], *, method: str = "GET", follow: bool = True
) -> Answer:
    """One answer, redirects followed; secrets go to the first server only. Raises `OSError` or `OriginError`."""
    sent, current = dict(headers), url
    for _ in range(_MOST_REDIRECTS + 1):
        with connections.request(current, {**sent, "Accept-Encoding": "identity"}, method=method) as answer:
            body = answer.read(_LARGEST_ANSWER)
            found = {name.lower(): value for name, value in answer.headers.items()}
            if answer.status not in _REDIRECTS or not follow or "location" not in found:
                return Answer(status=answer.status, headers=found, body=body, url=current)
        following = urljoin(current, found["location"])
        if not following.startswith(("http://", "https://")):
            raise OriginError(f"{url} redirects to {following!r}, which is no web address")
        if _server(following) != _server(current):
            sent = {name: value for name, value in sent.items() if name.lower() not in ("authorization", "cookie")}
        current = following
    raise OriginError(f"{url} redirects more than {_MOST_REDIRECTS} times")


def judged(answer: Answer, uri: str) -> Answer:
    """The answer, if it is a good one. Raises what its status means; `BundleMissing` for 404."""
    try:
        judge(answer.status, uri, retry_after=answer.headers.get("retry-after", ""))
    except OriginChanged:
        raise BundleMissing(f"there is nothing at {uri} (HTTP {answer.status}); look at the address") from None
    return answer


@contextmanager
def asked_by(connections: Connections, patience_seconds: float | None) -> Iterator[Connections]:
    """The connections that a question goes over: others, which wait less, for one who can do without an answer."""
    if patience_seconds is None:
        yield connections
        return
    most = max(1.0, patience_seconds)
    impatient = Connections(stall_seconds=most, connect_seconds=most)
    try:
        yield impatient
    finally:
        impatient.close()


def patience(seconds: float | None) -> dict[str, float]:
    """What `patiently` is told; nothing for one who waits as long as anybody."""
    return {} if seconds is None else {"seconds": seconds}


def patiently(uri: str, question: Callable[[], Answered], *, seconds: float = PATIENCE_SECONDS) -> Answered:
    """The answer to `question`, asked again while there is none. Raises `OriginUnreachable`."""
    again = retry(
        retry=retry_if_exception_type(OSError),
        stop=stop_before_delay(seconds),
        wait=wait_random_exponential(multiplier=0.1, max=5.0),
        reraise=True,
    )
    try:
        return again(question)()
    except OSError as error:
        raise OriginUnreachable(f"{uri}: the origin does not answer ({error}); nothing was changed") from error


def _server(url: str) -> str:
    return "/".join(url.split("/", 3)[:3])
