"""A network that a test cuts and stalls."""

import socket
import threading
from contextlib import suppress


class Proxy:
    """A TCP proxy on loopback whose network can be cut, and can stall."""

    def __init__(self, port):
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._is_cut = False
        self._flows, self._answers = threading.Event(), threading.Event()
        self._flows.set()
        self._answers.set()
        self._sockets = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        """Ends all connections and refuses new ones."""
        with self._lock:
            self._is_cut = True
            for each in self._sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
            self._sockets.clear()

    def restore(self):
        self._is_cut = False

    def stall(self):
        """Holds back what comes until `wake`; connections stay open."""
        self._flows.clear()

    def hold_answers(self):
        """Holds back what the server sends until `wake`; it gets what is sent to it."""
        self._answers.clear()

    def wake(self):
        self._flows.set()
        self._answers.set()

    def close(self):
        self.cut()
        self.wake()
        self._server.close()

    def _accept(self):
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                with self._lock:
                    if self._is_cut:
                        client.close()
                        continue
                    try:
                        server = socket.create_connection(("127.0.0.1", self._target))
                    except OSError:
                        client.close()
                        continue
                    self._sockets += [client, server]
                for way in ((client, server, self._flows), (server, client, self._answers)):
                    threading.Thread(target=self._copy, args=way, daemon=True).start()

    def _copy(self, source, target, may_pass):
        with suppress(OSError):
            while data := source.recv(65_536):
                self._flows.wait()
                may_pass.wait()
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
