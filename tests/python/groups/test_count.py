"""The number of partitions of a new stream, and the names of groups."""

import pytest

from batchqueue import ConfigError
from batchqueue.groups.record import check_name, group_id, partition_count


def test_partition_count_of_a_single_worker_is_1():
    assert partition_count() == partition_count(None) == partition_count(max_workers=1) == 1


@pytest.mark.parametrize("max_workers", [0, -1])
def test_no_worker_to_scale_to_counts_as_a_single_worker(max_workers):
    assert partition_count(max_workers=max_workers) == 1


# How many workers run now is not an argument: a stream is prepared for the most.
@pytest.mark.parametrize(
    ("max_workers", "partitions"),
    [(2, 2), (4, 4), (8, 8), (16, 16)],
    ids=["2_workers", "4_workers_2_now", "8_workers_3_now", "16_workers_16_partitions"],
)
def test_partition_count_leaves_room_for_all_workers(max_workers, partitions):
    assert partition_count(None, max_workers) == partitions
    assert partition_count(max_workers=max_workers) == partitions


@pytest.mark.parametrize("max_workers", [-1, 1, 4, 64])
@pytest.mark.parametrize("explicit", [1, 3, 16, 16_384])
def test_explicit_partition_count_comes_first(explicit, max_workers):
    assert partition_count(explicit, max_workers) == explicit


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"partition_count": 0}, r"partition_count is 0; give 1 to 16_384 partitions, or leave"),
        ({"partition_count": -4}, r"partition_count is -4; give 1 to 16_384"),
        ({"partition_count": 16_385}, r"partition_count is 16385; give at most 16_384, or leave"),
        ({"partition_count": 4.0}, r"partition_count is 4\.0, a float; give an int"),
        ({"partition_count": True}, r"partition_count is True, a bool; give an int"),
        ({"partition_count": "4"}, r"partition_count is '4', a str; give an int"),
        ({"max_workers": 16_385}, r"max_workers is 16385; give at most 16_384, or partition_count"),
        ({"max_workers": None}, r"max_workers is None, a NoneType; give an int"),
        ({"max_workers": False}, r"max_workers is False, a bool; give an int"),
        ({"partition_count": 4, "max_workers": 2.5}, r"max_workers is 2\.5, a float; give an int"),
    ],
)
def test_invalid_number_is_rejected_with_value_limit_and_remedy(arguments, message):
    with pytest.raises(ConfigError, match=message):
        partition_count(**arguments)


def test_group_id_joins_job_and_stage():
    assert group_id("billing", "store") == "billing_store"
    assert group_id("größe-1.0", "a/b:c") == "größe-1.0_a/b:c"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", r"is empty; give at least one printable character"),
        ("a b", r"is 'a b' with ' '; give printable characters without spaces, braces and bars"),
        ("a{b", r"is 'a\{b' with '\{'"),
        ("a}b", r"is 'a\}b' with '\}'"),
        ("a|b", r"is 'a\|b' with '\|'"),
        ("a\n", r"is 'a\\n' with '\\n'"),
        ("a\u00a0b", r".*with '\\xa0'"),
        ("\u200b", r".*with '\\u200b'"),
        ("\ud800", r".*with '\\ud800'"),
        (b"ab", r"is b'ab', a bytes; give a str"),
        (None, r"is None, a NoneType; give a str"),
    ],
)
def test_name_that_cannot_be_part_of_a_key_is_rejected(name, message):
    with pytest.raises(ConfigError, match=f"the stream's name {message}"):
        check_name("the stream", name)
    with pytest.raises(ConfigError, match="the job's name"):
        group_id(name, "store")
    with pytest.raises(ConfigError, match="the stage's name"):
        group_id("billing", name)


def test_valid_name_is_returned():
    assert check_name("the stream", "orders.eu-1_~[x]") == "orders.eu-1_~[x]"
