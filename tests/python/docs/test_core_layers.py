"""The check of the core's layers finds every path to a room that is not below, and only those."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "scripts"))
from core_layers import Core, circles, faults

LAYERS = ({"control"}, {"flow"}, {"item", "sync"})


@pytest.fixture
def tree(tmp_path):
    """Write files of the core, and return what is wrong with them."""

    def write(files, check=lambda core: faults(core, LAYERS)):
        rooms = {f"{room}.rs": "" for layer in LAYERS for room in layer}
        for name, text in ({"lib.rs": ""} | rooms | files).items():
            path = tmp_path / "src" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return list(check(Core(tmp_path / "src")))

    return write


@pytest.mark.parametrize(
    "code",
    [
        "use crate::control::Rank;",
        "pub(crate) use crate::{sync::Arc, control::{self, Rank as Order}};",
        "use crate::{\n    control::Rank,\n};",
        "use super::control;",
        "fn start() {\n    crate::control::start();\n}",
        "mod real {\n    use super::super::control::Rank;\n}",
        "use crate::Rank;",
        "use crate::item::Rank;",
    ],
)
def test_a_path_to_a_room_above_is_found(tree, code):
    files = {
        "lib.rs": "pub use control::Rank;",
        "control.rs": "mod rank;\npub use self::rank::Rank;",
        "control/rank.rs": "pub struct Rank;",
        "item.rs": "pub use crate::control::Rank;",
        "flow.rs": code,
    }

    found = [fault for fault in tree(files) if fault.startswith("src/flow.rs")]

    assert found
    assert all("flow uses control" in fault for fault in found), found


@pytest.mark.parametrize(
    "code",
    [
        "use crate::item::Item; use std::sync::Arc; use arrow::array::Array;",
        "use crate::sync;\npub(in crate::control) fn f() {}",
        "// crate::control::start() is what calls it\n/* use crate::control::Rank; */",
        "#[cfg(test)]\nuse crate::control::Rank;",
        "#[cfg(loom)]\n#[path = 'loom_tests.rs']\nmod loom_tests;",
        "#[cfg(test)]\nmod tests {\n    use crate::control::Rank;\n}",
    ],
)
def test_tests_comments_and_rooms_below_are_left_alone(tree, code):
    files = {"flow.rs": code, "flow/loom_tests.rs": "use crate::control::Rank;"}
    assert tree(files) == []


def test_rooms_of_one_layer_do_not_use_each_other(tree):
    assert tree({"item.rs": "use crate::sync::Arc;"}) == [
        "src/item.rs:1: item uses sync, which is not below it"
    ]


def test_each_room_is_in_a_layer(tree):
    assert tree({"extra.rs": ""}) == ["extra is in no layer"]


def test_modules_that_need_each_other_are_named(tree):
    files = {
        "flow/put.rs": "use super::take::Take;",
        "flow/take.rs": "use super::put::Put;",
        "flow/room.rs": "use super::put::Put;",
    }
    assert tree(files, circles) == ["a circle of 2 modules: flow::put, flow::take"]
