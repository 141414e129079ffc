"""A topic of Kafka that commands name by its brokers, and the file with the settings for them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from batchqueue.base.checks import require
from batchqueue.exceptions import ConfigError

if TYPE_CHECKING:
    from batchqueue.groups.kafka import KafkaStreams

FORM = "kafka://HOST:PORT,HOST:PORT"

_BROKER = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")
_PORTS = range(1, 65_536)

_NOT_HERE = {
    "@": "a user; leave it out, and set sasl.username and sasl.password in the file of "
    "--command-config",
    "/": f"a path; give {FORM}, and the topic as --stream",
    "?": f"a query; give {FORM}, and settings in the file of --command-config",
    "#": f"a fragment; give {FORM}",
}
"""What a URL of brokers does not have, by the character that shows it, and the remedy."""


def topic_of(url: str, topic: str, command_config: str | None) -> "KafkaStreams":
    """Return a topic of Kafka.

    Args:
        url: The brokers: `kafka://HOST:PORT,HOST:PORT`.
        topic: The topic.
        command_config: The path of a file with settings; None for none.

    Raises:
        ConfigError: The URL or the file is invalid. The message omits the URL and all values of
            the file that may be secret.
        MissingPackageError: confluent-kafka is not installed.
    """
    brokers = url.partition("://")[2]
    for mark, what in _NOT_HERE.items():
        if mark in brokers:
            raise ConfigError(f"--source has {what}")
    for number, broker in enumerate(brokers.split(","), 1):
        found = _BROKER.fullmatch(broker)
        if found is None or (found[1] is not None and int(found[1]) not in _PORTS):
            raise ConfigError(f"broker {number} of --source is not HOST:PORT; give {FORM}")
    require("confluent_kafka", "--source kafka://", "kafka")
    from batchqueue.groups.kafka import KafkaStreams

    settings = {} if command_config is None else settings_in(command_config)
    return KafkaStreams(topic, bootstrap=brokers, config=settings)


def settings_in(path: str) -> dict[str, str]:
    """Return the settings of librdkafka in a file of lines `name=value`, with `#` for comments.

    Raises:
        ConfigError: The file cannot be read, or librdkafka refuses it; the message has the line.
    """
    from batchqueue.groups.kafka.streams import OURS

    settings, lines = {}, {}
    for number, line in enumerate(_text_of(path).split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if not (name and equals):
            raise ConfigError(f"{path}, line {number}: give name=value, or # for a comment")
        if name in OURS:
            raise ConfigError(
                f"{path}, line {number}: {name} is not for this file: the command sets it itself; "
                "leave it out"
            )
        settings[name], lines[name] = value, number
    reason = _refusal(settings)
    if reason is not None:
        wrong = [name for name, value in settings.items() if _refusal({name: value}) == reason]
        where = f"{path}, line {lines[wrong[0]]}: {wrong[0]}" if wrong else path
        raise ConfigError(f"{where}: {reason}; give settings of librdkafka")
    return settings


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"--command-config is {path}: {error.strerror}; give a file that this user may read"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(
            f"--command-config is {path}, which is not UTF-8; give a file of lines name=value"
        ) from None


def _refusal(settings: Mapping[str, str]) -> str | None:
    """Return why librdkafka refuses settings; None if it does not."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        AdminClient({"log_level": 2, **settings})
    except KafkaException as error:
        reason: str = error.args[0].str().strip().removeprefix("Failed to create admin client: ")
        return reason
    except (AttributeError, TypeError, ValueError) as error:  # what only programs can set
        return str(error)
    return None
