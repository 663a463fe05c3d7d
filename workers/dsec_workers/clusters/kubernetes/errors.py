"""The API server's answers that are no success, each with what a person can do about it."""

from collections.abc import Mapping
from typing import Any

from dsec_blocks.model.errors import ClusterError


class ApiError(ClusterError):
    """An answer of the API server other than success. `status` is the HTTP status, `reason` Kubernetes' own word."""

    def __init__(self, message: str, *, status: int, reason: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


class NotFound(ApiError):
    """The object, its namespace, or its kind does not exist (404)."""


class AlreadyExists(ApiError):
    """An object of that name is there already (409)."""


class Conflict(ApiError):
    """Somebody changed or replaced the object meanwhile (409), or a precondition does not hold."""


class Expired(ApiError):
    """The resource version is too old to watch from, or a list's continuation is (410): list again."""


class Refused(ApiError):
    """The API server does not accept the object (400, 422): its own words name the field."""


class Forbidden(ApiError):
    """The account may not do this (401, 403), or a quota admits no more."""

    @property
    def by_quota(self) -> bool:
        """Whether a ResourceQuota refused it: waiting can cure that."""
        return "exceeded quota" in str(self)


class Overloaded(ApiError):
    """The API server asks to be left alone for a while (429, 503, 504)."""


class Unreachable(ClusterError):
    """The API server does not answer at all."""


_BY_REASON: Mapping[str, type[ApiError]] = {
    "NotFound": NotFound,
    "AlreadyExists": AlreadyExists,
    "Conflict": Conflict,
    "Expired": Expired,
    "Gone": Expired,
    "Invalid": Refused,
    "BadRequest": Refused,
    "Forbidden": Forbidden,
    "Unauthorized": Forbidden,
    "TooManyRequests": Overloaded,
    "ServiceUnavailable": Overloaded,
    "Timeout": Overloaded,
    "ServerTimeout": Overloaded,
}
_BY_STATUS: Mapping[int, type[ApiError]] = {
    400: Refused, 401: Forbidden, 403: Forbidden, 404: NotFound, 409: Conflict, 410: Expired, 422: Refused,
    429: Overloaded, 500: Overloaded, 502: Overloaded, 503: Overloaded, 504: Overloaded,
}  # fmt: skip


def error_of(answer: Mapping[str, Any] | None, *, status: int, what: str, retry_after: float | None = None) -> ApiError:
    """The error that a `Status` object (or a bare HTTP status) stands for; `what` says what was asked."""
    answer = answer or {}
    reason, message = str(answer.get("reason") or ""), str(answer.get("message") or f"HTTP {status}")
    details = answer.get("details") or {}
    if retry_after is None and details.get("retryAfterSeconds"):
        retry_after = float(details["retryAfterSeconds"])
    kind = _BY_REASON.get(reason) or _BY_STATUS.get(status, ApiError)
    return kind(f"{what}: {message}{_advice(status)}", status=status, reason=reason, retry_after=retry_after)


def _advice(status: int) -> str:
    return "; the credentials are not accepted: renew the token or the kubeconfig" if status == 401 else ""
