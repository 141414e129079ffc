"""Balancers of groups: the default plans, and what a custom one returns is checked."""

import copy
import pickle
from collections import UserDict
from functools import partial

import pytest

from batchqueue import ConfigError
from batchqueue.groups.plan import GroupBalancer, plan

WEIGHTS = {0: 0.5, 1: None, 2: 4.0, 3: 0.25}
LAST_OWNER = {0: "a", 1: "a", 2: "b", 3: "b"}
CAPACITY = {"b": 1.0, "a": 2.0}


def first_member(weights, last_owner, capacity, *, force):
    return dict.fromkeys(weights, min(capacity))


def planned(assign, weights=WEIGHTS, last_owner=LAST_OWNER, capacity=CAPACITY, force=True):
    balancer = GroupBalancer.custom(lambda *args, **options: assign(*args, **options))
    return balancer.plan(weights, last_owner, capacity, force=force)


@pytest.mark.parametrize("force", [True, False])
def test_default_balancer_plans_by_load(force):
    balancer = GroupBalancer.load_weighted()
    weights, last_owner = dict.fromkeys(range(8)), dict.fromkeys(range(5), "a")
    last_owner |= dict.fromkeys(range(5, 8), "b")
    members = {"a": 1.0, "b": 1.0}
    owners = balancer.plan(weights, last_owner, members, force=force)
    assert owners == plan(weights, last_owner, members, force=force)
    assert (owners == last_owner) is not force


@pytest.mark.parametrize(
    "balancer",
    [GroupBalancer.load_weighted(), GroupBalancer.custom(first_member)],
    ids=lambda balancer: balancer.kind,
)
def test_balancers_are_frozen_pickle_and_compare_by_value(balancer):
    for again in (pickle.loads(pickle.dumps(balancer)), copy.deepcopy(balancer)):
        assert again == balancer
        assert hash(again) == hash(balancer)
        assert again.plan(WEIGHTS, {}, CAPACITY, force=True) == balancer.plan(
            WEIGHTS, {}, CAPACITY, force=True
        )
    with pytest.raises(AttributeError):
        balancer.kind = "other"


@pytest.mark.parametrize("force", [True, False])
def test_custom_function_gets_all_partitions_members_and_whether_it_is_forced(force):
    seen = []

    def assign(weights, last_owner, capacity, *, force):
        seen.append((weights, last_owner, capacity, force))
        return dict.fromkeys(weights, "a")

    planned(assign, {2: 4.0}, {0: "left", 1: "b"}, CAPACITY, force)
    assert seen == [
        ({0: None, 1: None, 2: 4.0}, {0: "left", 1: "b", 2: None}, {"a": 2.0, "b": 1.0}, force)
    ]


def test_custom_plan_is_used_in_the_order_of_partitions():
    owners = planned(lambda *_, force: {3: "a", 1: "b", 0: "b", 2: "a"})
    assert list(owners.items()) == [(0, "b"), (1, "b"), (2, "a"), (3, "a")]
    assert planned(lambda *_, force: UserDict(owners)) == owners
    assert planned(plan) == plan(WEIGHTS, LAST_OWNER, CAPACITY, force=True)


def test_none_keeps_all_partitions_where_they_are():
    assert planned(lambda *_, force: None) == LAST_OWNER


def test_function_cannot_change_what_its_plan_is_checked_against():
    def assign(weights, last_owner, capacity, *, force):
        capacity["x"] = 1.0
        last_owner[9] = weights[9] = None
        return dict.fromkeys(weights, "x")

    weights, last_owner, capacity = dict(WEIGHTS), dict(LAST_OWNER), dict(CAPACITY)
    with pytest.raises(ConfigError, match="partition 9, and the stream has 4 partitions"):
        planned(assign, weights, last_owner, capacity)
    assert (weights, last_owner, capacity) == (WEIGHTS, LAST_OWNER, CAPACITY)


def raises(*_, force):
    raise ZeroDivisionError("as planned")


def returns(value):
    return partial(lambda value, *_, force: value, value)


@pytest.mark.parametrize(
    ("assign", "words"),
    [
        (raises, ["raised ZeroDivisionError('as planned')", "fix the function", "or return None"]),
        (returns({0: "a", 1: "a", 2: "a"}), ["3 entries", "4 partitions", "partition 3 is left"]),
        (returns({}), ["0 entries", "partition 0 is left out", "one member per partition"]),
        (returns(LAST_OWNER | {4: "a"}), ["partition 4", "4 partitions, 0, 1, 2, 3;"]),
        (returns(LAST_OWNER | {"3": "a"}), ["partition '3'", "give one member for each"]),
        (returns(LAST_OWNER | {2: "left"}), ["partition 2 to 'left'", "members are 'a', 'b';"]),
        (returns(LAST_OWNER | {1: None}), ["partition 1 to None", "give one of these"]),
        (returns(LAST_OWNER | {1: ["a"]}), ["partition 1 to ['a']", "give one of these"]),
        (returns(7), ["returned 7", "give a dict", "or None"]),
        (returns(["a", "a", "b", "b"]), ["returned ['a', 'a', 'b', 'b']", "give a dict"]),
    ],
    ids=[
        "raises",
        "short",
        "empty",
        "long",
        "str partition",
        "left",
        "none",
        "unhashable",
        "int",
        "list",
    ],
)
def test_invalid_custom_plan_is_rejected_with_value_limit_and_remedy(assign, words):
    with pytest.raises(ConfigError) as refused:
        planned(assign)
    assert all(word in str(refused.value) for word in ["the custom balancer", *words])


@pytest.mark.parametrize("last_owner", [LAST_OWNER | {2: "left"}, {0: "a", 1: "a", 3: "b"}])
def test_none_is_rejected_while_a_partition_has_no_living_owner(last_owner):
    with pytest.raises(ConfigError, match=r"1 of 4 partitions .* instance 2; give one member per"):
        planned(lambda *_, force: None, last_owner=last_owner)


def test_error_of_a_custom_function_is_the_cause_and_an_interrupt_passes():
    with pytest.raises(ConfigError) as refused:
        planned(raises)
    assert isinstance(refused.value.__cause__, ZeroDivisionError)

    def interrupted(*_, force):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        planned(interrupted)


def test_message_names_a_few_of_many_members_and_partitions():
    capacity = {f"m{number}": 1.0 for number in range(9)}
    with pytest.raises(ConfigError, match=r"are 'm0', 'm1', 'm2', 'm3', 'm4' and 4 more; give"):
        planned(returns(LAST_OWNER), capacity=capacity)
    weights = dict.fromkeys(range(2_048))
    with pytest.raises(ConfigError, match=r"2,048 partitions, 0, 1, 2, 3, 4 and 2043 more; give"):
        planned(returns({-1: "a"}), weights)


def test_plan_without_members_is_empty_and_the_function_is_not_called():
    for balancer in (GroupBalancer.load_weighted(), GroupBalancer.custom(raises)):
        assert balancer.plan(WEIGHTS, LAST_OWNER, {}, force=True) == {}


@pytest.mark.parametrize("assign", [None, 3, "plan"])
def test_assign_must_be_callable(assign):
    with pytest.raises(ConfigError, match=r"GroupBalancer\.custom: .* is not callable; give a fun"):
        GroupBalancer.custom(assign)
