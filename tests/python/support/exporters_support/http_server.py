"""An HTTP server on loopback that stores items, and misbehaves as a test says."""

import gzip
import json
import socket
import threading
from collections import deque
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from core_support.waits import WAIT_S


class Request(NamedTuple):
    """What the server got."""

    method: str
    path: str
    headers: dict
    items: list
    connection: int
    """The number of its connection, from 0."""


class HttpServer:
    """Stores the items of each request that no answer of `script` takes.

    Attributes:
        stored: The items, in the order of arrival.
        requests: All requests, refused ones included.
        script: Answers for the next requests: functions of the handler and the request.
        most_bytes: The largest body; a larger one is answered with 413.
    """

    def __init__(self):
        self.stored, self.requests, self.script = [], [], deque()
        self.most_bytes = 1 << 30
        self.always = None
        self.connections, self.open = 0, set()
        self.released = threading.Event()
        self.lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self):
                super().setup()
                with outer.lock:
                    self.number = outer.connections
                    outer.connections += 1
                    outer.open.add(self.connection)

            def handle(self):
                with suppress(ConnectionError):
                    super().handle()

            def finish(self):
                with outer.lock:
                    outer.open.discard(self.connection)
                with suppress(OSError):
                    super().finish()

            def do_POST(self):
                outer.answer(self)

            do_PUT = do_POST

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

        self._kind = lambda port: Server(("127.0.0.1", port), Handler)
        self.port = 0
        self.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/items"

    def start(self):
        self._server = self._kind(self.port)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self):
        """Refuses connections and cuts those that are open."""
        self._server.shutdown()
        self._thread.join(WAIT_S)
        self._server.server_close()
        with self.lock:
            for connection in self.open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.released.set()
        self.stop()

    def answer(self, handler):
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        size = len(body)
        if handler.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        if handler.headers["Content-Type"] == "application/json":
            items = json.loads(body)
        else:
            assert body.endswith(b"\n")
            items = [json.loads(line) for line in body.splitlines()]
        request = Request(
            handler.command, handler.path, dict(handler.headers), items, handler.number
        )
        with self.lock:
            self.requests.append(request)
            act = self.script.popleft() if self.script else self.always
        if size > self.most_bytes:
            act = status(413)
        (act or accept)(self, handler, request)

    def store(self, items):
        with self.lock:
            self.stored += items


# Answers.


def reply(handler, code, body=b"", **headers):
    handler.send_response(code)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def accept(server, handler, request):
    """Stores the items."""
    server.store(request.items)
    reply(handler, 200, b"{}")


def status(code, body=b"no", **headers):
    """Refuses the items."""
    return lambda _server, handler, _request: reply(handler, code, body, **headers)


def lost(server, handler, request):
    """Stores the items and closes the connection without an answer."""
    server.store(request.items)
    drop(handler)


def half(server, handler, request):
    """Stores the items and breaks off in the middle of the answer."""
    server.store(request.items)
    handler.send_response(200)
    handler.send_header("Content-Length", "100")
    handler.end_headers()
    handler.wfile.write(b'{"half":')
    drop(handler)


def refuse_connection(_server, handler, _request):
    """Closes the connection without storing."""
    drop(handler)


def accept_and_close(server, handler, request):
    """Stores the items, answers, and closes the idle connection without announcing it."""
    accept(server, handler, request)
    handler.wfile.flush()
    drop(handler)


def hang(server, _handler, _request):
    """Stores nothing, and does not answer until the test ends."""
    server.released.wait(WAIT_S)


def hang_stored(server, _handler, request):
    """Stores the items, and does not answer until the test ends."""
    server.store(request.items)
    server.released.wait(WAIT_S)


def drip(server, handler, _request):
    """Answers a byte at a time, without an end."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    while not server.released.wait(0.01):
        handler.wfile.write(b" ")


def drop(handler):
    handler.close_connection = True
    handler.wfile.flush()
    with suppress(OSError):
        handler.connection.shutdown(socket.SHUT_RDWR)


def bulk(result):
    """Answers as `_bulk` does; `result(action, document)` returns a status, or (status, error)."""

    def act(server, handler, request):
        pairs = list(zip(request.items[::2], request.items[1::2], strict=True))
        entries, stored = [], []
        for action, document in pairs:
            (kind,) = action
            code = result(action, document)
            entries.append({kind: {"status": code, "error": {"type": f"error_{code}"}}})
            if code < 300:
                entries[-1][kind].pop("error")
                stored.append(document)
        server.store(stored)
        errors = len(stored) < len(pairs)
        reply(handler, 200, json.dumps({"errors": errors, "items": entries}).encode())

    return act


@contextmanager
def http_server():
    server = HttpServer()
    try:
        yield server
    finally:
        server.close()
