"""Which node a command goes to, and that all keys of one are in one slot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot
from redis.exceptions import AskError, MovedError, ResponseError

from batchqueue.groups.backend import CommitRequest, NewRecord, Opening, SetAside
from batchqueue.groups.messages import Entry
from batchqueue.groups.record import Start
from batchqueue.groups.redis.cluster import (
    SlotBatch,
    SlotMap,
    SlotPlace,
    by_node,
    redirected,
    without_asking,
)
from batchqueue.groups.redis.node import is_unavailable
from batchqueue.groups.redis.scripts import PartitionCalls, PartitionKeys, RedisGroup, control_keys

HERE = ("10.0.0.1", 7000)
THERE = ("10.0.0.2", 7001)

names = st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0x17F, exclude_characters="{}"),
    min_size=1,
    max_size=12,
)


def slots_of(keys):
    return {key_slot(key.encode()) for key in keys}


class Calls:
    """A link that keeps the keys of what it is to run."""

    def __init__(self):
        self.keys = []

    def call(self, calls):
        self.keys += [each.keys for each in calls]
        return [b"1" for _ in calls]

    def run(self, commands):
        self.keys += [each[1:] if each[0] == "DEL" else each[1:2] for each in commands]
        return [[] for _ in commands]


class TestKeys:
    @given(names, names, names, st.integers(0, 16_383))
    def test_keys_of_a_script_of_a_partition_are_in_one_slot(self, stream, group, other, number):
        calls = PartitionCalls(stream, group)
        tag = PartitionKeys(stream, number).tag
        commit = CommitRequest(number, 1, "s", 2, 1, (("SET", f"{tag}total", 1),))
        made = [
            calls.open(Opening(number, 1, "s"), Start.EARLIEST),
            calls.commit(commit),
            calls.set_aside(SetAside(number, 1, "s", (Entry(1, b""),))),
            calls.info(number),
            calls.reset(number, 1, 1),
            calls.forget(number),
            calls.send_back(number, [Entry(1, b"")]),
            calls.trim(number, [group, other]),
            calls.add(number, 1, [NewRecord(number, b"")]),
        ]
        keys = [*(key for each in made for key in each.keys), PartitionKeys(stream, number).records]
        assert f"{tag}total" in keys
        assert len(slots_of(keys)) == 1

    @given(names, names)
    def test_keys_of_a_group_are_in_one_slot(self, stream, group):
        link = Calls()
        scripts = RedisGroup(link, stream, group)
        scripts.time()
        scripts.release("s", [])
        scripts.history()
        scripts.delete()
        assert len(link.keys) == 4
        keys = [key for each in link.keys for key in each]
        assert set(keys) == set(control_keys(stream, group))
        assert len(slots_of(keys)) == 1


class TestErrors:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("READONLY You can't write against a read only replica.", True),
            (
                "Error running script (call to f_6f73): @user_script:103: @user_script: 103: "
                "-READONLY You can't write against a read only replica.",
                True,
            ),
            ("WRONGTYPE Operation against a key", False),
        ],
    )
    def test_server_that_takes_no_writes_is_unavailable(self, text, expected):
        assert is_unavailable(ResponseError(text)) == expected


class TestSlotMap:
    def test_commands_go_to_the_node_of_their_slot(self):
        slots = SlotMap([[0, 5_460, [b"10.0.0.1", 7000, b"id"]], [5_461, 10_922, [b"b", 1]]], HERE)

        assert slots.nodes == [HERE, ("b", 1)]
        assert [slots.owner(slot) for slot in (5_460, 5_461, 10_923)] == [HERE, ("b", 1), None]
        slots.move(10_923, THERE)
        assert slots.owner(10_923) == THERE

    @pytest.mark.parametrize("host", [b"", None, b"?"])
    def test_node_without_a_name_is_at_the_host_that_was_asked(self, host):
        assert SlotMap([[0, 16_383, [host, 7001]]], HERE).nodes == [("10.0.0.1", 7001)]

    @pytest.mark.parametrize(
        "words",
        [
            ("GET", "{orders}:k"),
            ("EVALSHA", "sha", 2, "{orders}:k", "{orders}:l", "x"),
            ["XREAD", "COUNT", 5, "STREAMS", "{orders}:k", "0-0"],
            ("XADD", b"{orders}:k", "*", b"v", b"{other}"),
        ],
    )
    def test_slot_of_each_kind_of_command(self, words):
        assert SlotMap([], HERE).slot_of(words) == key_slot(b"orders")


class TestBatches:
    def test_commands_of_a_node_keep_their_order(self):
        places = [
            SlotPlace(3, HERE),
            SlotPlace(0, THERE),
            SlotPlace(1, HERE, True),
            SlotPlace(2, THERE),
        ]

        assert by_node(places) == {
            THERE: [SlotPlace(0, THERE), SlotPlace(2, THERE)],
            HERE: [SlotPlace(1, HERE, True), SlotPlace(3, HERE)],
        }

    def test_asking_comes_before_its_command_and_its_reply_is_left_out(self):
        places = [SlotPlace(1, HERE, True), SlotPlace(2, HERE)]
        batch = SlotBatch([("A",), ("B",), ("C",)], [1, 2, 3], [None] * 3)

        assert batch.words(places) == [("ASKING",), ("B",), ("C",)]
        assert without_asking(places, ["OK", "b", "c"]) == [(places[0], "b"), (places[1], "c")]

    def test_redirects(self):
        place = SlotPlace(1, HERE)

        assert redirected(place, "OK") is None
        assert redirected(place, MovedError("5 b:1")) == SlotPlace(1, ("b", 1))
        assert redirected(place, AskError("5 b:1")) == SlotPlace(1, ("b", 1), is_asked=True)
        assert redirected(place, MovedError("5 :7001")) == SlotPlace(1, ("10.0.0.1", 7001))
