"""The rights of a user on a broker of Kafka."""

from uuid import uuid4

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from batchqueue.groups import KafkaStreams
from core_support.kafka_broker import PASSWORD, USER

TOPIC, GROUP, DEAD, OUT, TRANSACTIONS = "topic", "group", "dead", "out", "transactions"
OF_REDRIVE, REDRIVES = "group of its redrive", "transactional id of its redrive"


class Rights:
    """The rights of the user on a topic, its dead letters and the group of the same name."""

    def __init__(self, broker):
        self.name = f"orders-{uuid4()}"
        self.open = KafkaStreams(self.name, bootstrap=broker.address, partitions=2)
        self._secured = broker.secured_address
        self._admin = AdminClient({"bootstrap.servers": broker.address})

    def streams(self, protocol="auto", password=PASSWORD, **settings):
        return KafkaStreams(self.name, protocol=protocol, **self.login(password), **settings)

    def login(self, password=PASSWORD):
        """The settings with which the user connects."""
        config = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": password,
        }
        return {"bootstrap": self._secured, "config": config}

    def give(self, *rights):
        made = [self._rule(AclBinding, *each, AclPermissionType.ALLOW) for each in rights]
        for asked in self._admin.create_acls(made).values() if made else ():
            asked.result()

    def take(self, *rights):
        rules = [self._rule(AclBindingFilter, *each, AclPermissionType.ANY) for each in rights]
        for asked in self._admin.delete_acls(rules).values():
            asked.result()

    def _rule(self, kind, on, right, permission):
        resource, suffix = {
            TOPIC: (ResourceType.TOPIC, ""),
            DEAD: (ResourceType.TOPIC, ".dead"),
            OUT: (ResourceType.TOPIC, ".out"),
            GROUP: (ResourceType.GROUP, ""),
            TRANSACTIONS: (ResourceType.TRANSACTIONAL_ID, ""),
            OF_REDRIVE: (ResourceType.GROUP, ".redrive"),
            REDRIVES: (ResourceType.TRANSACTIONAL_ID, ".redrive"),
        }[on]
        is_prefix = on == TRANSACTIONS
        return kind(
            resource,
            self.name + suffix,
            ResourcePatternType.PREFIXED if is_prefix else ResourcePatternType.LITERAL,
            f"User:{USER}",
            "*",
            getattr(AclOperation, right),
            permission,
        )
