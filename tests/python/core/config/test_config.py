"""Settings and policies: an invalid value is rejected with the value, the limit and the remedy."""

from datetime import timedelta

import pytest

from batchqueue import (
    BatchQueue,
    BatchQueueConfig,
    BatchQueueError,
    ConfigError,
    PartitionPolicy,
    PartitionSelector,
    ThreadPolicy,
)

ONE = ThreadPolicy.fixed(1)


class ModuleLevelConsumer:
    def consume(self, batch):
        pass


def module_level_key(item):
    return str(item)


WRONG = [
    ({}, r"neither of threads and shared_scheduler.*give exactly one"),
    (
        {"threads": ONE, "shared_scheduler": ("io", ONE)},
        r"both of threads and shared_scheduler.*give exactly one",
    ),
    (
        {"shared_scheduler": ("", ONE)},
        r"shared_scheduler is \('', .*give a name and a ThreadPolicy",
    ),
    (
        {"shared_scheduler": ("io", 4)},
        r"shared_scheduler is \('io', 4\).*give a name and a ThreadPolicy",
    ),
    ({"shared_scheduler": "io"}, r"shared_scheduler is 'io'.*give a name and a ThreadPolicy"),
    ({"threads": ONE, "balancer": "lpt"}, r"balancer is 'lpt', a str; give DrainBalancer or None"),
    ({"threads": ONE, "retry": 3}, r"retry is 3, an int; give RetryPolicy or None"),
    ({"threads": ONE, "rebalance_interval_ms": -1}, r"rebalance_interval_ms is -1; give"),
    ({"threads": ONE, "takeover_after_ms": 0.5}, r"takeover_after_ms is 0.5; give .* from 1 up"),
    ({"threads": ONE, "takeover_after_ms": float("inf")}, r"takeover_after_ms is inf; give"),
    ({"threads": ONE, "spare_threads": -1}, r"spare_threads is -1; give an int, 0 to 1_024"),
    ({"threads": ONE, "spare_threads": True}, r"is True, a bool; give an int, 0 to 1_024"),
    (
        {"threads": ONE, "spare_threads": 2, "consumer_factory": lambda: print},
        r"spare_threads is 2 with a consumer_factory",
    ),
    ({"threads": ONE, "buffer_size": 0}, r"buffer_size is 0; give"),
    ({"threads": ONE, "buffer_size": -3}, r"buffer_size is -3; give"),
    ({"threads": ONE, "buffer_size": 1.5}, r"buffer_size is 1\.5, a float; give an int"),
    ({"threads": ONE, "buffer_size": True}, r"buffer_size is True"),
    ({"threads": ONE, "buffer_size": None}, r"buffer_size is None"),
    ({"threads": ONE, "buffer_size": 10**15}, r"buffer_size is 1000000000000000"),
    ({"threads": ONE, "buffer_size": 2**63}, r"buffer_size is 9223372036854775808"),
    ({"threads": ONE, "max_batch_items": 0}, r"max_batch_items is 0; give"),
    ({"threads": ONE, "max_batch_items": 2**64}, r"max_batch_items is"),
    (
        {"threads": ONE, "min_idle_ms": 10, "max_idle_ms": 5},
        r"max_idle_ms \(5\) is below min_idle_ms \(10\).*raise",
    ),
    ({"threads": ONE, "min_idle_ms": -1}, r"min_idle_ms is -1; give"),
    ({"threads": ONE, "max_idle_ms": float("nan")}, r"max_idle_ms is nan; give"),
    ({"threads": ONE, "max_idle_ms": float("inf")}, r"max_idle_ms is inf"),
    ({"threads": ONE, "min_idle_ms": "5"}, r"min_idle_ms is '5', a str; give"),
    ({"threads": ONE, "shutdown_timeout": -1}, r"shutdown_timeout is -1; give"),
    ({"threads": ONE, "shutdown_timeout": "soon"}, r"shutdown_timeout is 'soon'"),
    ({"threads": 4}, r"threads is 4, an int; give ThreadPolicy"),
    ({"threads": ONE, "partitions": 4}, r"partitions is 4, an int; give PartitionPolicy"),
    (
        {"threads": ONE, "strategy": "BLOCKING"},
        r"strategy is 'BLOCKING', a str; give BufferStrategy",
    ),
    (
        {"threads": ONE, "selector": "by_type"},
        r"selector is 'by_type', a str; give PartitionSelector",
    ),
    ({"threads": ONE, "consumer": 3}, r"an int cannot be a handler.*consume"),
    (
        {"threads": ONE, "consumer": ModuleLevelConsumer},
        r"the class ModuleLevelConsumer cannot be a handler",
    ),
    ({"threads": ONE, "consumer_factory": 3}, r"consumer_factory is 3; it must be callable"),
    ({"threads": ONE, "error_handler": 3}, r"error_handler is 3; it must be callable"),
    (
        {"threads": ONE, "consumer": len, "consumer_factory": ModuleLevelConsumer},
        r"consumer and consumer_factory are both given; give one",
    ),
]


@pytest.mark.parametrize(
    ("settings", "message"), WRONG, ids=[str(index) for index in range(len(WRONG))]
)
def test_invalid_setting_is_rejected_when_the_config_is_made(settings, message):
    with pytest.raises(ConfigError, match=message):
        BatchQueueConfig(**settings)


def test_settings_are_keyword_only_and_known():
    with pytest.raises(TypeError):
        BatchQueueConfig(ONE)
    with pytest.raises(TypeError):
        BatchQueueConfig(threads=ONE, buffersize=3)


@pytest.mark.parametrize("setting", ["warn_after", "shutdown_timeout"])
def test_a_timedelta_becomes_seconds(setting):
    settings = BatchQueueConfig(threads=ONE, **{setting: timedelta(milliseconds=1_500)})
    assert getattr(settings, setting) == 1.5
    assert settings == BatchQueueConfig(threads=ONE, **{setting: 1.5})
    BatchQueue("queue", settings).shutdown(2)


def test_config_error_is_a_value_error_and_a_batch_queue_error():
    assert issubclass(ConfigError, ValueError)
    assert issubclass(ConfigError, BatchQueueError)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ThreadPolicy.fixed(0), r"fixed.*0.*give"),
        (lambda: ThreadPolicy.fixed(-2), r"-2.*give"),
        (lambda: ThreadPolicy.cpu_cores(0), r"is 0.*above 0"),
        (lambda: ThreadPolicy.cpu_cores(-1), r"is -1.*above 0"),
        (lambda: ThreadPolicy.cpu_cores(float("nan")), r"NaN|nan"),
        (lambda: ThreadPolicy.cpu_cores(float("inf")), r"inf"),
        (lambda: ThreadPolicy.cpu_cores_with_base(-1, 1.0), r"-1.*give"),
        (lambda: PartitionPolicy.fixed(0), r"fixed is 0; give"),
        (lambda: PartitionPolicy.fixed(-1), r"-1.*give"),
        (lambda: PartitionPolicy.thread_multiply(0), r"thread_multiply is 0; give"),
        (lambda: PartitionPolicy.adaptive(0), r"adaptive is 0; give"),
        (lambda: PartitionSelector.by_key(3), r"by_key: 3 is not callable; give a function"),
        (lambda: PartitionSelector.custom("x"), r"custom: 'x' is not callable; give a function"),
    ],
)
def test_invalid_policy_is_rejected(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("policy", "cores", "threads"),
    [
        (ThreadPolicy.fixed(3), 64, 3),
        (ThreadPolicy.cpu_cores(1.0), 8, 8),
        (ThreadPolicy.cpu_cores(0.5), 1, 1),
        (ThreadPolicy.cpu_cores(0.5), 3, 2),
        (ThreadPolicy.cpu_cores(0.5), 5, 3),
        (ThreadPolicy.cpu_cores(0.01), 4, 1),
        (ThreadPolicy.cpu_cores_with_base(1, 0.25), 8, 3),
        (ThreadPolicy.cpu_cores_with_base(1, 0.25), 2, 2),
    ],
)
def test_thread_policies_round_half_up_and_give_at_least_one_thread(policy, cores, threads):
    assert policy.resolve(cores) == threads


def test_thread_policies_use_the_cores_of_this_process():
    assert ThreadPolicy.cpu_cores(1.0).resolve() >= 1
    assert ThreadPolicy.cpu_cores(1.0).resolve() == ThreadPolicy.cpu_cores(1.0).resolve(None)


@pytest.mark.parametrize(
    ("policy", "threads", "handlers", "partitions"),
    [
        (PartitionPolicy.fixed(7), 4, 100, 7),
        (PartitionPolicy.thread_multiply(3), 4, 100, 12),
        (PartitionPolicy.adaptive(), 8, 0, 8),
        (PartitionPolicy.adaptive(), 8, 100, 100),
        (PartitionPolicy.adaptive(), 8, 200, 200),
        (PartitionPolicy.adaptive(), 8, 460, 330),
        (PartitionPolicy.adaptive(), 8, 500, 350),
        (PartitionPolicy.adaptive(2), 2, 10, 7),
    ],
)
def test_partition_policies_resolve_to_partition_counts(policy, threads, handlers, partitions):
    assert policy.resolve(threads, handlers) == partitions
