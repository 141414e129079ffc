"""How commands name a stream and a group, and what each command's help says."""

import re
import sys
import types

import pytest

from batchqueue.cli import groups_options as source
from batchqueue.cli import main
from batchqueue.cli.groups import GROUP_COMMANDS
from batchqueue.exceptions import MissingPackageError
from batchqueue.groups import MemoryStreams
from pages import ROOT

OPTIONS = {
    "run": {"MODULE:ATTR", "--workers", "--until-idle", "--max-seconds"},
    "top": {"--once", "--json"},
    "log": {"--follow"},
    "lag": {"--max"},
    "drain": {"--name", "--host", "--no-wait", "--timeout"},
    "reset": {"--to", "--partition", "--yes"},
    "redrive": {"--partition", "--limit"},
    "trim": set(),
    "resize": {"--partitions", "--wait", "--timeout"},
}
TARGET = {"--worker", "--source", "--command-config", "--stream", "--group"}


def refused(capsys, *arguments):
    """Returns the message of a command that is refused as invalid use."""
    assert main(["groups", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


def help_of(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_:
        main([*arguments, "--help"])
    assert exit_.value.code == 0
    return capsys.readouterr().out


def test_help_of_groups_lists_every_command_with_its_line(capsys):
    listed = re.sub(r"\s+", " ", help_of(capsys, "groups"))
    assert [command.name for command in GROUP_COMMANDS] == list(OPTIONS)
    for command in GROUP_COMMANDS:
        assert f" {command.name} {command.help}" in listed


@pytest.mark.parametrize("command", OPTIONS)
def test_help_of_a_command_names_all_of_its_options(capsys, command):
    text = help_of(capsys, "groups", command)
    expected = OPTIONS[command] | (TARGET if command != "run" else set()) | {"--help"}
    found = set(re.findall(r"^  (?:-h, )?(--[a-z-]+|MODULE:ATTR)", text, re.MULTILINE))
    assert found == expected


def test_guide_lists_all_commands_with_their_options():
    page = (ROOT / "docs/guide/groups-service.md").read_text()
    [table] = re.findall(r"^\| `batchqueue groups` .*?\n\n", page, re.MULTILINE | re.DOTALL)
    rows = {row.split("`")[1].split()[0]: row for row in table.splitlines()[2:] if row}
    documented = {
        name: set(re.findall(r"--[a-z-]+|MODULE:ATTR", row)) for name, row in rows.items()
    }
    assert documented == OPTIONS


def test_missing_command_is_rejected(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["groups"])
    assert exit_.value.code == 2
    assert "command" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--source, --stream, --group missing; give --worker MODULE:ATTR, or --source URL"),
        (("--source", "redis://h", "--stream", "s"), "--group missing"),
        (("--worker", "shop:worker", "--group", "g"), "--worker and --group given; give either"),
        (("--source", "http://secret", "--stream", "s", "--group", "g"), "begins with http://;"),
        (("--source", "secret", "--stream", "s", "--group", "g"), "--source is not a URL"),
        (("--source", "kafka:secret", "--stream", "s", "--group", "g"), "--source is not a URL"),
        (("--worker", "shop:worker", "--command-config", "f"), "--worker and --command-config"),
        (("--source", "redis://h", "--stream", "a b", "--group", "g"), "the stream's name"),
        (("--source", "redis://h", "--stream", "s", "--group", "{g}"), "the group's name"),
    ],
)
def test_incomplete_or_invalid_group_is_rejected(capsys, arguments, message):
    err = refused(capsys, "lag", *arguments)
    assert err.startswith("batchqueue groups lag: ")
    assert message in err
    assert "secret" not in err


@pytest.mark.parametrize(
    ("brokers", "message"),
    [
        ("u:secret@h:9092", "has a user; leave it out, and set sasl.username and sasl.password in"),
        ("h:9092/secret", "has a path; give kafka://HOST:PORT,HOST:PORT, and the topic as"),
        ("h:9092?secret=1", "has a query; give kafka://HOST:PORT,HOST:PORT, and settings in the"),
        ("h:9092#secret", "has a fragment; give kafka://HOST:PORT,HOST:PORT"),
        ("", "broker 1 of --source is not HOST:PORT; give kafka://HOST:PORT,HOST:PORT"),
        ("h:9092,u:secret", "broker 2 of --source is not HOST:PORT"),
        ("h:0", "broker 1 of --source is not HOST:PORT"),
        ("h:65536", "broker 1 of --source is not HOST:PORT"),
        ("[::1]:9092,[::2", "broker 2 of --source is not HOST:PORT"),
        ("h:9092, i:9092", "broker 2 of --source is not HOST:PORT"),
    ],
)
def test_url_of_brokers_has_hosts_and_ports_only(capsys, brokers, message):
    where = ("--source", f"kafka://{brokers}", "--stream", "s", "--group", "g")
    err = refused(capsys, "lag", *where)
    assert message in err
    assert "secret" not in err


@pytest.mark.parametrize("brokers", ["h", "h:9092", "a-1.b_c:1,10.0.0.1:65535", "[::1]:9092,h"])
def test_url_of_brokers_names_the_topic(brokers):
    found = source.source_of(f"KAFKA://{brokers}", "orders")
    assert repr(found) == f"KafkaStreams('orders', bootstrap={brokers!r})"


@pytest.fixture
def command_config(tmp_path, capsys):
    """Lets a command read a file of settings; returns the message with which it is refused."""

    def read(content):
        path = tmp_path / "client.properties"
        path.write_bytes(content)
        where = ("--source", "kafka://h", "--stream", "s", "--group", "g")
        err = refused(capsys, "lag", *where, "--command-config", str(path))
        return err.replace(str(path), "FILE").removeprefix("batchqueue groups lag: ")

    return read


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"# comment\n\nsecret\n", "FILE, line 3: give name=value, or # for a comment"),
        (b"=secret", "FILE, line 1: give name=value"),
        (b"sasl.password secret", "FILE, line 1: give name=value"),
        (b"sasl.passwort=secret", "FILE, line 1: sasl.passwort: No such configuration property"),
        (b"\r\nlinger.ms=5\r\nfoo=secret\r\n", "FILE, line 3: foo: No such configuration property"),
        (b"linger.ms=soon", "FILE, line 1: linger.ms: Invalid value"),
        (b"client.rack=a\nstats_cb=f", "FILE, line 2: stats_cb: expected stats_cb property as a"),
        (
            b"sasl.jaas.config=Module required password='secret';",
            "FILE, line 1: sasl.jaas.config: Java JAAS configuration is not supported",
        ),
        (
            b"security.protocol=sasl_ssl\nsasl.mechanism=PLAIN\nsasl.password=secret\n",
            "FILE: sasl.username and sasl.password must be set; give settings of librdkafka",
        ),
        (
            b"bootstrap.servers=h\n",
            "FILE, line 1: bootstrap.servers is not for this file: the command sets it itself;",
        ),
        (b"\xff\xfesecret", "--command-config is FILE, which is not UTF-8; give a file of lines"),
    ],
)
def test_invalid_setting_is_rejected_with_its_line_and_without_its_value(
    command_config, content, message
):
    err = command_config(content)
    assert err.startswith(message)
    assert "secret" not in err


def test_file_of_settings_that_cannot_be_read_is_rejected(tmp_path, capsys):
    where = ("--source", "kafka://h", "--stream", "s", "--group", "g", "--command-config")
    missing = tmp_path / "client.properties"
    err = refused(capsys, "lag", *where, str(missing))
    assert f"--command-config is {missing}: No such file or directory; give a file" in err
    assert "Is a directory" in refused(capsys, "lag", *where, str(tmp_path))


def test_settings_of_a_file_are_those_of_the_topic(tmp_path):
    path = tmp_path / "client.properties"
    path.write_text("\ufeff# login\n sasl.password = a=b#c\\ \u2028d\nlinger.ms=5\nlinger.ms=9")
    made = source.source_of("kafka://h", "orders", str(path))
    assert made._server.config == {"sasl.password": "a=b#c\\ \u2028d", "linger.ms": "9"}


def test_file_of_settings_is_for_kafka_only(capsys):
    where = ("--source", "redis://h", "--stream", "s", "--group", "g", "--command-config", "f")
    err = refused(capsys, "lag", *where)
    assert "--command-config is for kafka:// only; leave it out" in err


def test_missing_kafka_package_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'batchqueue-rs\[kafka\]'"):
        source.source_of("kafka://h", "orders")


def test_missing_redis_package_is_named_with_its_remedy(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'batchqueue-rs\[redis\]'"):
        source.source_of("redis://h/0", "orders")
    assert main(["groups", "lag", "--source", "redis://h", "--stream", "s", "--group", "g"]) == 1
    assert "redis" in capsys.readouterr().err


def test_source_is_made_of_the_url_and_the_stream(monkeypatch, capsys):
    made = []

    def redis_streams(url, stream):
        made.append((url, stream))
        return MemoryStreams(stream)

    backend = types.ModuleType("batchqueue.groups.redis")
    backend.RedisStreams = redis_streams
    monkeypatch.setitem(sys.modules, "redis", types.ModuleType("redis"))
    monkeypatch.setitem(sys.modules, backend.__name__, backend)
    where = ("--source", "rediss://h/2", "--stream", "orders", "--group", "g")
    assert main(["groups", "lag", *where]) == 0
    assert made == [("rediss://h/2", "orders")]
    assert "total" in capsys.readouterr().out


@pytest.mark.parametrize("command", [name for name in OPTIONS if name != "run"])
def test_stream_that_does_not_exist_is_rejected(groups, streams, monkeypatch, command):
    monkeypatch.setattr(streams, "partition_count", 0)
    needed = {"drain": ("--name", "a"), "reset": ("--to", "latest"), "resize": ("--partitions", 8)}
    code, _, err = groups(command, *needed.get(command, ()), *(["--once"] * (command == "top")))
    assert (code, 'stream "orders" does not exist' in err) == (2, True)


@pytest.mark.parametrize("command", ["reset", "redrive"])
def test_partition_that_does_not_exist_is_rejected(groups, command):
    arguments = ("--to", "latest", "--yes") if command == "reset" else ()
    code, _, err = groups(command, "--partition", 4, *arguments)
    assert code == 2
    assert "--partition is 4; give 0 to 3, or leave it out" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("lag", "--max", "-1"),
        ("lag", "--max", "many"),
        ("redrive", "--limit", "0"),
        ("resize", "--partitions", "0"),
        ("resize",),
        ("reset",),
        ("drain",),
        ("drain", "--name", "a", "--host", "b"),
        ("drain", "--name", "a", "--timeout", "soon"),
        ("run",),
        ("run", "shop:worker", "--workers", "0"),
        ("run", "shop:worker", "--until-idle", "nan"),
        ("run", "shop:worker", "--until-idle", "inf"),
    ],
)
def test_invalid_options_are_rejected(capsys, arguments):
    with pytest.raises(SystemExit) as exit_:
        main(["groups", *arguments])
    assert exit_.value.code == 2
    assert f"batchqueue groups {arguments[0]}: error:" in capsys.readouterr().err
