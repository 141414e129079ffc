"""What a consumer owns, as a pure state machine; and a random run of brokers and members."""

import random

import pytest

from batchqueue.groups.backend import CommitRequest
from batchqueue.groups.kafka.ownership import Owned, Ownership, began_in, metadata_of, token_in
from batchqueue.groups.messages import Refusal


@pytest.fixture
def ownership():
    ownership = Ownership(4)
    ownership.join("a")
    return ownership


def granted(ownership, held=None, now_us=1_000, session="a"):
    return ownership.sync(session, 0, held or {}, now_us).grants


def opened(ownership, *partitions):
    """Assigns and opens partitions, and returns their tokens."""
    ownership.assign(partitions)
    tokens = granted(ownership)
    for partition in partitions:
        ownership.owned[partition].is_open = True
    return tokens


def request(partition, token, offset=9, session="a"):
    return CommitRequest(partition, token, session, offset, offset + 1)


class TestGrants:
    def test_what_the_broker_assigns_is_granted_once_with_growing_tokens(self, ownership):
        ownership.assign([0, 1])
        first = granted(ownership)
        assert sorted(first.values()) == [1_000, 1_001]
        assert granted(ownership, first) == {}

    def test_clock_that_was_set_back_gives_larger_tokens_all_the_same(self, ownership):
        ownership.assign([0])
        before = granted(ownership)[0]
        ownership.remove([0])
        ownership.assign([0])
        assert granted(ownership, now_us=5)[0] == before + 1

    def test_token_is_above_the_one_that_refused(self, ownership):
        ownership.assign([0])
        assert ownership.sync("a", 77_000, {}, 1_000).grants == {0: 77_001}

    def test_partition_that_control_has_dropped_is_granted_anew(self, ownership):
        [before] = opened(ownership, 0).values()
        [again] = granted(ownership).values()
        assert again > before
        assert not ownership.owned[0].is_open

    def test_session_that_has_joined_later_gets_all(self, ownership):
        [before] = opened(ownership, 0).values()
        ownership.join("b")
        assert ownership.sync("a", 0, {0: before}, 1_000) is Refusal.UNKNOWN
        assert granted(ownership, session="b")[0] > before


class TestRevokes:
    def test_revoked_partition_is_named_until_it_is_released(self, ownership):
        tokens = opened(ownership, 0, 1)
        [waits] = ownership.revoke([1])
        synced = ownership.sync("a", 0, tokens, 1_000)
        assert (synced.revoked, synced.lost, synced.grants) == ((1,), (), {})
        assert not waits.is_released
        ownership.release("a", [(1, tokens[1])])
        assert waits.is_released

    def test_partition_without_a_grant_does_not_wait(self, ownership):
        ownership.assign([0])
        assert ownership.revoke([0]) == []

    def test_partition_that_control_has_dropped_does_not_wait(self, ownership):
        opened(ownership, 0)
        [waits] = ownership.revoke([0])
        granted(ownership, {})
        assert waits.is_released

    def test_what_is_lost_is_named(self, ownership):
        tokens = opened(ownership, 0, 1)
        ownership.remove([0])
        synced = ownership.sync("a", 0, tokens, 1_000)
        assert (synced.lost, synced.revoked) == ((0,), ())

    def test_partition_that_is_lost_and_comes_back_is_lost_and_granted(self, ownership):
        tokens = opened(ownership, 0)
        ownership.remove([0])
        ownership.assign([0])
        synced = ownership.sync("a", 0, tokens, 1_000)
        assert synced.lost == (0,)
        assert synced.grants[0] > tokens[0]

    def test_worker_that_leaves_gives_up_all_and_gets_nothing(self, ownership):
        tokens = opened(ownership, 0)
        ownership.leave()
        ownership.assign([1])
        synced = ownership.sync("a", 0, tokens, 1_000)
        assert (synced.revoked, synced.grants) == ((0,), {})

    def test_each_change_has_another_version(self, ownership):
        seen = [ownership.version]
        for change in (
            lambda: ownership.assign([0]),
            lambda: ownership.revoke([0]),
            lambda: ownership.remove([0]),
            ownership.leave,
            lambda: ownership.join("b"),
        ):
            change()
            seen.append(ownership.version)
        assert len(set(seen)) == len(seen)


class TestCommits:
    def test_what_is_owned_under_the_token_may_be_committed(self, ownership):
        tokens = opened(ownership, 0, 1)
        wanted = [request(0, tokens[0]), request(1, tokens[1])]
        assert ownership.committable(wanted) == wanted

    def test_revoked_partition_may_be_committed_until_it_is_gone(self, ownership):
        tokens = opened(ownership, 0)
        ownership.revoke([0])
        assert len(ownership.committable([request(0, tokens[0])])) == 1
        ownership.remove([0])
        assert ownership.committable([request(0, tokens[0])]) == []

    def test_assignment_of_before_may_not_be_committed(self, ownership):
        tokens = opened(ownership, 0)
        ownership.remove([0])
        opened(ownership, 0)
        assert ownership.committable([request(0, tokens[0])]) == []

    def test_partition_that_is_not_open_may_not_be_committed(self, ownership):
        ownership.assign([0])
        token = granted(ownership)[0]
        assert ownership.committable([request(0, token)]) == []


@pytest.mark.parametrize(
    ("metadata", "token", "began"),
    [
        (metadata_of(Owned(0, token=17, began=4), "a;b"), 17, 4),
        ("", 0, 0),
        (None, 0, 0),
        ("bq1", 0, 0),
        ("bq1;x;y;a", 0, 0),
        ("of another program", 0, 0),
        ("bq2;17;4;a", 0, 0),
    ],
)
def test_what_metadata_say(metadata, token, began):
    assert (token_in(metadata), began_in(metadata)) == (token, began)


class Partition:
    """A partition of the model: its owner, and the commits that the broker has taken."""

    def __init__(self):
        self.owner = None
        self.offset, self.token = 0, 0


class Member:
    """A member, which commits what it has handled under the rules of `Ownership`."""

    def __init__(self, name, partitions):
        self.name = name
        self.ownership = Ownership(partitions)
        self.ownership.join(name)
        self.held = {}
        self.done = {}
        self.stalled = False


@pytest.mark.parametrize("seed", range(200))
def test_neither_offset_nor_token_goes_back_however_members_come_and_stall(seed):
    """As the broker does, the model takes each commit of a member that it knows, for any partition;
    a member that it has removed learns of it before it commits again."""
    chance = random.Random(seed)
    partitions = [Partition() for _ in range(4)]
    members = [Member(f"m{number}", 4) for number in range(3)]
    known, removed = set(members), set()
    now = 1_000
    for _ in range(300):
        now += chance.randrange(50)
        member = chance.choice(members)
        match chance.randrange(6):
            case 0:  # the group is rebalanced: what moves is revoked or, from who is gone, lost
                for number, partition in enumerate(partitions):
                    owner = chance.choice(sorted(known, key=lambda each: each.name))
                    before = partition.owner
                    if before is owner:
                        continue
                    if before in known:
                        revoke(before, number, partition)
                    partition.owner = owner
                    owner.ownership.assign([number])
            case 1:  # a pause beyond the session
                if len(known) > 1 and member in known:
                    known.discard(member)
                    removed.add(member)
                    heir = min(known, key=lambda each: each.name)
                    for number, partition in enumerate(partitions):
                        if partition.owner is member:
                            partition.owner = heir
                            heir.ownership.assign([number])
            case 2:  # its end: the loss is served before the member is known again
                if member in removed:
                    member.ownership.remove(list(member.ownership.owned))
                    removed.discard(member)
                    known.add(member)
            case _:
                work(member, partitions, known, now, chance)


def revoke(member, number, partition):
    """Takes a partition back, with a last commit of what is done."""
    rest = member.ownership.revoke([number])
    if rest and number in member.held:
        commit(member, number, partition)
    member.ownership.remove([number])


def work(member, partitions, known, now, chance):
    synced = member.ownership.sync(member.name, 0, member.held, now)
    for number in synced.lost:
        member.held.pop(number)
        member.done.pop(number, None)
    for number, token in synced.grants.items():
        partition = partitions[number]
        if member not in known or token <= partition.token:  # K5
            continue
        member.ownership.owned[number].is_open = True
        member.held[number], member.done[number] = token, partition.offset
        partition.token = token
    for number in list(member.held):
        member.done[number] += chance.randrange(5)
        if member in known:
            commit(member, number, partitions[number])


def commit(member, number, partition):
    token, done = member.held[number], member.done[number]
    for each in member.ownership.committable([request(number, token, done, member.name)]):
        assert each.token >= partition.token
        assert each.offset >= partition.offset
        partition.token, partition.offset = each.token, each.offset
