"""`HttpBatches`: a batch of items as the body of an HTTP request."""

import gzip as gzip_module
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from batchqueue.base.checks import (
    ABOVE_0,
    check_choice,
    check_finite,
    check_switch,
    is_whole,
    require,
)
from batchqueue.exceptions import BatchQueueError, ConfigError
from batchqueue.exporters.contract import (
    AskedWait,
    Exporter,
    Halve,
    NotDelivered,
    Outcome,
    send_in_halves,
)
from batchqueue.exporters.fields import RowFunction, as_dict, as_json

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

_FORMATS = ("json", "ndjson", "bulk")
_MOST_ANSWER_BYTES = 64 << 20
_SHOWN_CHARACTERS = 500
_TOO_LARGE = 413
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A method, or the name of a header."""
_HEADER_VALUE = re.compile(r"([!-~]+([ \t]+[!-~]+)*)?")
_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")
"""A `Retry-After` is a whole number by the standard; some services send a fraction."""
_KEEP_IDLE_S = 4.0
"""Servers close idle connections after 5 s or more, and a request must not meet that moment."""


class HttpRefused(BatchQueueError):
    """A server did not take an item or a batch.

    Attributes:
        status: The status of the answer, or of the item in it.
        text: The beginning of the answer, or the error of the item in it.
    """

    def __init__(self, status: int, text: str = "") -> None:
        super().__init__(f"HTTP status {status}: {text}" if text else f"HTTP status {status}")
        self.status = status
        self.text = text

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self.text)


class _Encoded(NamedTuple):
    item: Any
    body: bytes


class HttpBatches(Exporter[T]):
    """Sends each batch in one HTTP request.

    Needs the extra `http`. Each item is delivered at least once: if the answer is lost or comes too
    late, it is unknown whether the server has stored the batch, and it is sent again. Let the
    server drop what it has already, by an id in each item.

    | the server | the items |
    |---|---|
    | answers 2xx | are delivered; with "bulk" or `answer`, what the answer says of each |
    | cannot be reached, does not answer in time, breaks off | are tried again |
    | answers 5xx or one of `retry_statuses` | are tried again, not before its `Retry-After` |
    | answers 413 | are sent in halves; an item that is too large alone is a dead letter |
    | answers anything else | are dead letters |

    Redirects are not followed.
    """

    def __init__(
        self,
        url: str,
        *,
        format: str = "json",
        gzip: bool = False,
        headers: Mapping[str, str] | Callable[[list[T]], Mapping[str, str]] | None = None,
        method: str = "POST",
        timeout: float = 30,
        connect_timeout: float = 10,
        row: RowFunction | None = None,
        dumps: Callable[[Any], str | bytes] | None = None,
        action: Mapping[str, Any] | Callable[[T], Mapping[str, Any]] | None = None,
        conflict_is_done: bool = False,
        retry_statuses: Iterable[int] = (408, 425, 429),
        max_retry_after: float = 300,
        answer: "Callable[[httpx.Response, list[T]], Sequence[Outcome] | None] | None" = None,
        client: "Callable[[], httpx.Client] | None" = None,
    ) -> None:
        """Declare an exporter without connecting: a drain thread connects at the first batch.

        Args:
            url: Where to send to. A user and password in it become the header `Authorization`.
            format: "json" for an array, "ndjson" for a JSON value on each line, or "bulk" for the
                bulk API of Elasticsearch and OpenSearch. Default: "json".
            gzip: Whether to compress the body. Default: False.
            headers: More headers; or a function that makes them from the items of a request, for
                instance with a token that expires. If it raises, the items are tried again.
                Default: none.
            method: The method of the request. Default: "POST".
            timeout: Seconds that the server may be silent while the request is sent and until the
                answer begins; then the seconds for the body of the answer. Default: 30 s.
            connect_timeout: Seconds to wait for a connection. Default: 10 s.
            row: Makes what is encoded from an item. Default: the item; a dataclass or named tuple
                becomes an object with its fields.
            dumps: Encodes a value as JSON on one line, as `orjson.dumps` does. Default: `json`,
                without NaN; dates and times in ISO 8601, decimals and UUIDs as text.
            action: For "bulk", the line before each item, or a function of the item, for instance
                `lambda order: {"create": {"_index": "orders", "_id": order.id}}`. Default:
                `{"index": {}}`, if the URL has the index.
            conflict_is_done: For "bulk", whether a `create` that is answered with 409 counts as
                delivered: the document is there. Default: False, it is a dead letter.
            retry_statuses: The statuses after which items are tried again, in addition to 5xx.
                Default: 408, 425 and 429.
            max_retry_after: The most seconds of a `Retry-After` that are respected. Default: 300 s.
            answer: Reads an answer 2xx: takes the `httpx.Response` and the items, and returns the
                outcome of each, or None if all were delivered. If it raises, the items are tried
                again. Default: None, all were delivered.
            client: Makes an `httpx.Client`, for instance with certificates or a proxy; it must not
                follow redirects. Its timeouts are not used. Default: `httpx.Client()`.

        Raises:
            ConfigError: An argument is invalid.
            MissingPackageError: httpx is not installed.
        """
        require("httpx", "HttpBatches", "http")
        check_choice("format", format, _FORMATS)
        check_switch("gzip", gzip)
        check_switch("conflict_is_done", conflict_is_done)
        check_finite("timeout", timeout, ABOVE_0, give="seconds above 0")
        check_finite("connect_timeout", connect_timeout, ABOVE_0, give="seconds above 0")
        check_finite("max_retry_after", max_retry_after, 0, give="seconds from 0 up")
        for name, value, takes in (
            ("headers", headers, (Mapping, type(None))),
            ("row", row, (type(None),)),
            ("dumps", dumps, (type(None),)),
            ("action", action, (Mapping, type(None))),
            ("answer", answer, (type(None),)),
            ("client", client, (type(None),)),
        ):
            if not isinstance(value, takes) and not callable(value):
                raise ConfigError(f"{name} is {value!r}; it must be callable")
        if not isinstance(method, str) or not _TOKEN.fullmatch(method):
            raise ConfigError(f"method is {method!r}; give the name of a method, such as 'PUT'")
        if format != "bulk" and (action is not None or conflict_is_done):
            raise ConfigError(f'action and conflict_is_done are for format="bulk", not {format!r}')
        if format == "bulk" and answer is not None:
            raise ConfigError('answer is given with format="bulk", whose answers are known')
        statuses = frozenset(retry_statuses) if isinstance(retry_statuses, Iterable) else None
        if statuses is None or not all(is_whole(status, 100, 599) for status in statuses):
            raise ConfigError(f"retry_statuses is {retry_statuses!r}; give HTTP statuses")
        self._url, self._headers = _address(url)
        self._make_headers = headers if callable(headers) else None
        if isinstance(headers, Mapping):
            self._headers.update(_checked(headers))
        self._format, self._gzip, self._method = format, gzip, method
        self._timeout, self._connect_timeout = timeout, connect_timeout
        self._row = as_dict if row is None else row
        self._dumps: Callable[[Any], str | bytes] = as_json if dumps is None else dumps
        self._action = {"index": {}} if action is None else action
        self._conflict_is_done = conflict_is_done
        self._retry_statuses = statuses
        self._wait = AskedWait(max_retry_after)
        self._answer = answer
        self._make_client = client
        self._client: httpx.Client | None = None

    def __repr__(self) -> str:
        return f"HttpBatches({self._url.split('?')[0]!r}, format={self._format!r})"

    def export(self, items: list[T]) -> list[Outcome]:
        """Send items; see the class for what becomes of them."""
        early = self._wait.before(self)
        if early is not None:
            return [early] * len(items)
        outcomes: list[Outcome] = [None] * len(items)
        encoded, positions = [], []
        for position, item in enumerate(items):
            try:
                encoded.append(_Encoded(item, self._encode(item)))
            except Exception as error:
                outcomes[position] = NotDelivered(error, retry=False)
            else:
                positions.append(position)
        for position, outcome in zip(positions, send_in_halves(encoded, self._send), strict=True):
            outcomes[position] = outcome
        return outcomes

    def disconnect(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def forget(self) -> None:
        """Drop the connections of the parent, whose copies here send nothing when they close."""
        self._client = None

    def _encode(self, item: T) -> bytes:
        """Return the bytes of one item."""
        if self._format != "bulk":
            return self._line(self._row(item))
        action = self._action(item) if callable(self._action) else self._action
        lines = [self._line(action)]
        if "delete" not in action:
            lines.append(self._line(self._row(item)))
        return b"\n".join(lines)

    def _line(self, value: Any) -> bytes:
        text = self._dumps(value)
        line = text.encode() if isinstance(text, str) else text
        if b"\n" in line and self._format != "json":
            raise ValueError("dumps returned more than one line")
        return line

    def _send(self, part: list[_Encoded]) -> Sequence[Outcome] | Halve:
        """Send one request, and read what its answer says of the items."""
        items = [encoded.item for encoded in part]
        try:
            response = self._request(items, [encoded.body for encoded in part])
        except ConfigError as error:
            return [NotDelivered(error, retry=False)] * len(part)
        except Exception as error:
            # From a function of the program, or from httpx before the request was sent or after: in
            # the last case the outcome is unknown. What other parts have become is known.
            return [NotDelivered(error)] * len(part)
        status = response.status_code
        if response.is_success:
            return self._read_answer(response, items)
        refused = HttpRefused(status, _beginning(response))
        if status == _TOO_LARGE:
            return Halve(refused)
        if not self._is_retried(status):
            return [NotDelivered(refused, retry=False)] * len(part)
        wait = _retry_after_s(response.headers)
        failure = NotDelivered(refused)
        if wait is not None:
            self._wait.ask(wait, failure)
        return [failure] * len(part)

    def _is_retried(self, status: int) -> bool:
        return status >= 500 or status in self._retry_statuses

    def _request(self, items: list[T], bodies: list[bytes]) -> "httpx.Response":
        """Send a request and read the whole answer."""
        import httpx

        if self._format == "json":
            body, kind = b"[" + b",".join(bodies) + b"]", "application/json"
        else:
            body, kind = b"\n".join([*bodies, b""]), "application/x-ndjson"
        headers = {"Content-Type": kind, **self._headers}
        if self._make_headers is not None:
            headers.update(_checked(self._make_headers(items)))
        if self._gzip:
            body = gzip_module.compress(body, 6, mtime=0)
            headers["Content-Encoding"] = "gzip"
        if self._client is None:
            self._client = self._new_client()
        limits = httpx.Timeout(self._timeout, connect=self._connect_timeout)
        request = self._client.build_request(
            self._method, self._url, content=body, headers=headers, timeout=limits
        )
        response = self._client.send(request, stream=True, follow_redirects=False)
        end = time.monotonic() + self._timeout
        try:
            raw = bytearray()
            # Raw, so that a timeout and a limit apply to what is received.
            is_late = False
            for chunk in response.iter_raw():
                if is_late:
                    raise httpx.ReadTimeout("the answer takes too long", request=request)
                raw += chunk
                is_late = time.monotonic() > end  # if more is to come
                if len(raw) > _MOST_ANSWER_BYTES:
                    raise httpx.ReadError("the answer is too long", request=request)
        finally:
            response.close()
        try:
            return httpx.Response(
                response.status_code,
                headers=response.headers,
                content=bytes(raw),
                request=request,
            )
        except httpx.DecodingError as error:
            raise httpx.ReadError(str(error), request=request) from error

    def _new_client(self) -> "httpx.Client":
        import httpx

        if self._make_client is not None:
            return self._make_client()
        # httpcore sets TCP_NODELAY.
        limits = httpx.Limits(max_keepalive_connections=1, keepalive_expiry=_KEEP_IDLE_S)
        return httpx.Client(limits=limits)

    def _read_answer(self, response: "httpx.Response", items: list[T]) -> Sequence[Outcome]:
        """Return what a successful answer says of the items."""
        read: Callable[[httpx.Response, list[T]], Sequence[Outcome] | None] | None = (
            self._of_bulk if self._format == "bulk" else self._answer
        )
        if read is None:
            return [None] * len(items)
        try:
            outcomes = read(response, items)
            if outcomes is None:
                return [None] * len(items)
            outcomes = list(outcomes)
            if len(outcomes) != len(items):
                raise ValueError(f"{len(outcomes)} outcomes for {len(items)} items")
        except Exception as error:
            # An answer that cannot be read does not say what was stored.
            return [NotDelivered(error)] * len(items)
        return outcomes

    def _of_bulk(self, response: "httpx.Response", items: list[T]) -> list[Outcome] | None:
        answer = response.json()
        if answer["errors"] is False:
            return None
        return [self._of_item(*next(iter(entry.items()))) for entry in answer["items"]]

    def _of_item(self, action: str, result: Mapping[str, Any]) -> Outcome:
        status = result["status"]
        if 200 <= status < 300:
            return None
        if status == 409 and action == "create" and self._conflict_is_done:
            return None
        error = result.get("error")
        text = error if isinstance(error, str) else json.dumps(error)
        refused = HttpRefused(status, text[:_SHOWN_CHARACTERS])
        return NotDelivered(refused, retry=self._is_retried(status))


def _address(url: str) -> tuple[str, dict[str, str]]:
    """Return an URL without a password, which httpx would log, and the header in its place."""
    import httpx

    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError):
        parsed = None  # the message of the error may quote the password
    if parsed is None or parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError("url is not an address; write it as 'https://host:9200/orders/_bulk'")
    headers: dict[str, str] = {}
    if parsed.userinfo:
        auth = httpx.BasicAuth(parsed.username, parsed.password)
        request = next(auth.auth_flow(httpx.Request("POST", "http://host")))
        headers["Authorization"] = request.headers["Authorization"]
        parsed = parsed.copy_with(userinfo=b"")
    return str(parsed), headers


def _checked(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return headers that can be sent. An error must not show a value, which may be a secret."""
    for name, value in headers.items():
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise ConfigError(f"the header {name!r} has an invalid name")
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            raise ConfigError(
                f"the value of the header {name!r} cannot be sent; give a str in ASCII, without "
                "line breaks, and without spaces at its ends"
            )
    return headers


def _beginning(response: "httpx.Response") -> str:
    location = response.headers.get("Location")
    if location and response.is_redirect:
        return f"moved to {location[:_SHOWN_CHARACTERS]}; give that address"
    return response.text[:_SHOWN_CHARACTERS].strip()


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a `Retry-After`, which is a number or a date; None without a valid one.

    A date is compared with that of the answer, so that a wrong clock of this machine is harmless.
    """
    text = headers.get("Retry-After", "").strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        until = _moment(text)
    except (ValueError, TypeError):
        return None
    try:
        now = _moment(headers.get("Date", ""))
    except (ValueError, TypeError):
        now = datetime.now(UTC)
    return max(0.0, (until - now).total_seconds())


def _moment(text: str) -> datetime:
    moment = parsedate_to_datetime(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
