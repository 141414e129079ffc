"""The ownership protocol under random faults, and without each of its rules.

A run is decided by its profile and seed: `World(seed, profile).run()` repeats one that failed.
"""

import os

import pytest

from .checks import BrokenPromiseError
from .mutants import MUTANTS
from .world import PROFILES, World

RUNS = int(os.environ.get("BATCHQUEUE_GROUPS_RUNS", "140"))
FIRST_SEED = int(os.environ.get("BATCHQUEUE_GROUPS_FIRST_SEED", "0"))


@pytest.mark.timeout(0 if RUNS > 1_000 else 300)
@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_promises_hold(profile):
    for seed in range(FIRST_SEED, FIRST_SEED + RUNS // len(PROFILES)):
        try:
            World(seed, profile).run()
        except BrokenPromiseError as error:
            error.add_note(f"profile {profile.name}, seed {seed}")
            raise


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "_"))
def test_each_rule_is_needed(mutant):
    for seed in range(mutant.seeds):
        try:
            mutant.world(seed, mutant.profile).run()
        except BrokenPromiseError as error:
            print(f"{mutant.name}: profile {mutant.profile.name}, seed {seed}: {error}")
            return
    pytest.fail(f"{mutant.name}: no promise broke in {mutant.seeds} runs")


def test_same_seed_same_run():
    first, second = (World(3, PROFILES[-1]) for _ in range(2))
    first.run()
    second.run()

    assert first.ids == second.ids
    assert first.scheduler.now == second.scheduler.now
    assert [group.history() for group in first.groups.values()] == [
        group.history() for group in second.groups.values()
    ]


def test_runs_do_something():
    """A model whose workers own nothing would keep every promise."""
    worlds = [World(seed, profile) for profile in PROFILES for seed in range(3)]
    for world in worlds:
        world.run()

    assert sum(tracker.counts.handled for world in worlds for tracker in world.trackers) > 500
    assert any(world.was_rolled_back for world in worlds)
    assert any(world.clock_was_set_back for world in worlds)
