"""`RedisStreams` as a value, and checks of the server before it is used."""

import functools
import logging
import pickle
import sys

import pytest
import redis

from batchqueue import ConfigError
from batchqueue.base.background_log import flush_log
from batchqueue.exceptions import MissingPackageError
from batchqueue.groups import RedisStreams
from batchqueue.groups.redis.client import warnings_of
from core_support.waits import WAIT_S

URL = "redis://user:secret@db.example:6380/3"


def local_client():
    return redis.Redis()


class TestValue:
    def test_repr_shows_the_place_and_no_secret(self):
        streams = RedisStreams(URL, "orders", partitions=8, password="other-secret")

        assert repr(streams) == ("RedisStreams(db.example:6380/3, stream='orders', partitions=8)")
        assert "secret" not in repr(streams._server)

    @pytest.mark.parametrize(
        ("url", "place"),
        [
            ("redis://localhost", "localhost:6379/0"),
            ("rediss://:secret@10.0.0.1", "10.0.0.1:6379/0"),
            ("unix:///run/redis.sock?db=2", "/run/redis.sock"),
            (local_client, "local_client"),
            (functools.partial(redis.Redis, password="secret"), "partial"),
        ],
    )
    def test_place_of_each_kind_of_address(self, url, place):
        assert repr(RedisStreams(url, "s")) == f"RedisStreams({place}, stream='s')"

    def test_pickle_gives_an_equal_stream(self):
        streams = RedisStreams(URL, "orders", partitions=8, ssl_ca_certs="ca.pem")

        copy = pickle.loads(pickle.dumps(streams))
        assert (copy, hash(copy), copy.partition_count) == (streams, hash(streams), 8)
        assert copy != RedisStreams(URL, "orders", partitions=8)
        function = RedisStreams(local_client, "orders")
        assert pickle.loads(pickle.dumps(function)) == function
        assert b"secret" not in pickle.dumps(function)

    def test_it_cannot_be_changed(self):
        with pytest.raises(AttributeError, match="cannot be changed"):
            RedisStreams(URL, "orders").stream = "other"

    @pytest.mark.parametrize(
        ("arguments", "options", "message"),
        [
            ((URL, "a b"), {}, "printable characters"),
            ((URL, "s"), {"partitions": 0}, "give 1 to 16_384"),
            ((6379, "s"), {}, "url is an int; give a URL"),
            ((local_client, "s"), {"db": 3}, "db with a function"),
        ],
    )
    def test_invalid_argument_is_rejected(self, arguments, options, message):
        with pytest.raises(ConfigError, match=message):
            RedisStreams(*arguments, **options)

    def test_group_and_worker_names_become_keys(self):
        streams = RedisStreams(URL, "orders")

        for names in (("g{", "a"), ("g", "a b")):
            with pytest.raises(ConfigError, match="printable"):
                streams.connect(names[0], lease_ms=1_000, name=names[1])
        with pytest.raises(ConfigError, match="printable"):
            streams.open_administration("g|h")


class TestConnecting:
    @pytest.mark.parametrize(
        ("streams", "message"),
        [
            (RedisStreams("db.example", "s"), "the URL is invalid"),
            (RedisStreams("redis://db.example", "s", hots="x"), "hots"),
            (RedisStreams(dict, "s"), "dict returned dict; return a redis.Redis"),
        ],
    )
    def test_invalid_address_is_named(self, streams, message):
        with pytest.raises(ConfigError, match=message):
            streams.open_writer()

    def test_missing_package_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "redis", None)

        with pytest.raises(
            MissingPackageError, match=r"RedisStreams needs redis .*batchqueue-rs\[redis\]"
        ):
            RedisStreams(URL, "orders").open_writer()

    def test_old_package_is_named(self, monkeypatch):
        monkeypatch.setattr(redis.connection, "Connection", type("Connection", (), {}))
        monkeypatch.setattr(redis, "__version__", "5.0.1")

        with pytest.raises(MissingPackageError) as raised:
            RedisStreams(URL, "orders").open_writer()
        assert str(raised.value) == (
            "RedisStreams needs redis-py 5.0.2 or later (here is redis-py 5.0.1): "
            "pip install 'batchqueue-rs[redis]'"
        )

    def test_function_that_makes_a_client(self, redis_server):
        streams = RedisStreams(functools.partial(redis_server.client, decode_responses=True), "s")

        assert streams.open_writer().partitions(3) == 3

    def test_retries_of_the_client_are_off(self, redis_server):
        node = RedisStreams(redis_server.client, "s")._server.connector(2.5).node()
        connection = node._connection

        assert connection.retry._retries == 0
        assert connection.retry_on_error == []
        assert (connection.socket_timeout, connection.socket_connect_timeout) == (2.5, 2.5)


GOOD = {"redis_version": "7.0.15", "maxmemory_policy": "noeviction", "aof_enabled": "1"}


class TestServer:
    def test_good_server_needs_no_warning(self):
        assert warnings_of(GOOD) == []
        assert warnings_of({**GOOD, "redis_version": "6.2.0"}) == []
        assert warnings_of({}) == []

    @pytest.mark.parametrize("version", ["6.0.16", "5.0.7"])
    def test_old_server_is_rejected(self, version):
        with pytest.raises(ConfigError, match=f"version {version}; groups need 6.2 or later"):
            warnings_of({**GOOD, "redis_version": version})

    def test_eviction_is_warned_about(self):
        evicts = {**GOOD, "maxmemory_policy": "allkeys-lru", "maxmemory": "1000000"}

        assert warnings_of(evicts) == [
            "Redis evicts keys (allkeys-lru): set noeviction, or groups lose offsets"
        ]
        assert warnings_of({**evicts, "maxmemory": "0"}) == []
        assert warnings_of({**evicts, "maxmemory_policy": "volatile-lru"}) == []

    def test_worker_warns_once(self, redis_server, caplog):
        caplog.set_level(logging.WARNING, "batchqueue")
        with redis_server.client() as client:
            client.config_set("maxmemory", "1gb")
            client.config_set("maxmemory-policy", "allkeys-random")
        try:
            connection = RedisStreams(redis_server.url, "s").connect("g", lease_ms=1_000, name="a")
            connection.partitions(1)
            connection.close()
        finally:
            with redis_server.client() as client:
                client.config_set("maxmemory-policy", "noeviction")
                client.config_set("maxmemory", "0")

        assert flush_log(WAIT_S)
        eviction, log = caplog.messages
        assert "allkeys-random" in eviction
        assert "append-only file" in log
