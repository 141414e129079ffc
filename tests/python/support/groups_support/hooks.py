"""Streams whose workers' calls are watched, delayed or refused."""

METHODS = ("read", "open", "commit", "set_aside", "perform", "wait", "infos")


class HookedStreams:
    """A stream whose workers call `before(method, *arguments)` before each call of the backend."""

    def __init__(self, streams, before):
        self._streams, self._before = streams, before

    def __getattr__(self, name):
        return getattr(self._streams, name)

    def connect(self, group, **about):
        return HookedConnection(self._streams.connect(group, **about), self._before)


class HookedConnection:
    def __init__(self, connection, before):
        self._connection, self._before = connection, before

    def __getattr__(self, name):
        function = getattr(self._connection, name)
        if name not in METHODS:
            return function

        def call(*arguments):
            self._before(name, *arguments)
            return function(*arguments)

        return call
