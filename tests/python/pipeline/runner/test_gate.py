"""What a gate lets in, when, and in which order."""

import threading

import pytest

from batchqueue.pipeline.runner.stage import Gate, RunEnded
from core_support.waits import WAIT_S, eventually


class Entering:
    """A thread that enters a gate."""

    def __init__(self, gate, rows, size, worker=None):
        self.got = None
        self.ended = False

        def enter():
            try:
                self.got = gate.enter(rows, size, worker)
            except RunEnded:
                self.ended = True

        waiting = gate.waiting
        self.thread = threading.Thread(target=enter, daemon=True)
        self.thread.start()
        eventually(lambda: gate.waiting > waiting or not self.thread.is_alive())

    @property
    def waits(self):
        return self.thread.is_alive()

    def result(self):
        self.thread.join(WAIT_S)
        assert not self.waits
        return self.got


@pytest.mark.parametrize("size", [1, 100, 200 << 20])
def test_an_empty_stage_admits_any_chunk(size):
    gate = Gate(1, 100, 2_000)
    entering = Entering(gate, 1, size)
    assert not entering.waits
    assert entering.got == 0
    assert gate.held() == (1, size)


def test_two_large_chunks_never_pile_up():
    gate = Gate(2, 100, 2_000)
    gate.enter(1, 1_000, None)
    second = Entering(gate, 1, 1_000)
    assert second.waits
    gate.leave(1, 1_000, 0)
    assert second.result() is not None
    assert gate.most_bytes == 1_000


def test_bytes_up_to_the_limit_exactly():
    gate = Gate(1, 100, 2_000)
    gate.enter(1, 60, None)
    gate.enter(1, 40, None)
    assert Entering(gate, 1, 1).waits
    gate.end()


def test_rows_of_a_worker_up_to_the_limit_exactly():
    gate = Gate(2, 1_000, 10)
    gate.enter(6, 1, 0)
    gate.enter(4, 1, 0)
    waiting = Entering(gate, 1, 1, worker=0)
    assert waiting.waits
    assert gate.enter(10, 1, 1) == 1
    gate.leave(6, 1, 0)
    assert waiting.result() == 0


def test_no_chunk_overtakes_one_that_waits_for_bytes():
    gate = Gate(1, 100, 2_000)
    gate.enter(1, 60, None)
    large = Entering(gate, 1, 100)
    small = Entering(gate, 1, 10)
    assert large.waits
    assert small.waits
    gate.leave(1, 60, 0)
    large.result()
    assert small.waits
    gate.leave(1, 100, 0)
    small.result()


def test_a_chunk_is_inside_before_its_thread_wakes():
    gate = Gate(1, 100, 2_000)
    gate.enter(1, 60, None)
    lock = threading.Lock()
    lock.acquire()
    ticket = gate.line_up(2, 100, None, lock)
    assert gate.entered(ticket) is None
    gate.leave(1, 60, 0)
    assert not lock.locked()
    assert gate.entered(ticket) == 0
    assert gate.held() == (2, 100)
    small = Entering(gate, 1, 10)
    assert small.waits
    gate.leave(2, 100, 0)
    small.result()


def test_room_that_came_before_a_chunk_is_in_line_is_not_missed():
    gate = Gate(1, 100, 2_000)
    lock = threading.Lock()
    lock.acquire()
    assert gate.entered(gate.line_up(1, 100, None, lock)) == 0
    assert not lock.locked()


def test_a_chunk_that_waits_for_its_worker_is_overtaken():
    gate = Gate(2, 1_000, 10)
    gate.enter(10, 1, 0)
    waiting = Entering(gate, 10, 1, worker=0)
    other = Entering(gate, 10, 1, worker=1)
    assert not other.waits
    assert other.got == 1
    assert waiting.waits
    gate.end()


def test_any_worker_means_in_turn_and_the_one_that_has_least():
    gate = Gate(3, 1_000, 10)
    assert [gate.enter(5, 1, None) for _ in range(3)] == [0, 1, 2]
    gate.leave(5, 1, 1)
    assert [gate.enter(3, 1, None) for _ in range(2)] == [1, 1]
    assert {gate.enter(5, 1, None) for _ in range(2)} == {0, 2}


def test_workers_that_have_nothing_take_turns():
    gate, found = Gate(3, 1_000, 10), []
    for _ in range(6):
        found.append(gate.enter(5, 1, None))
        gate.leave(5, 1, found[-1])
    assert found == [0, 1, 2, 0, 1, 2]


def test_free_is_what_is_left_and_waits_for_a_row():
    gate = Gate(2, 100, 10)
    assert gate.free() == (20, 100)
    gate.enter(10, 30, 0)
    assert gate.free() == (10, 70)
    gate.enter(10, 30, 1)
    found = []
    thread = threading.Thread(target=lambda: found.append(gate.free()))
    thread.start()
    assert found == []
    gate.leave(10, 30, 0)
    thread.join(WAIT_S)
    assert found == [(10, 70)]


def test_free_has_a_byte_even_behind_a_chunk_that_is_too_large():
    gate = Gate(1, 100, 10)
    gate.enter(1, 99, None)
    assert gate.free() == (9, 1)


def test_the_end_of_a_run_ends_waits_now_and_later():
    gate = Gate(1, 100, 10)
    gate.enter(10, 100, None)
    waiting = Entering(gate, 1, 1)
    gate.end()
    waiting.thread.join(WAIT_S)
    assert waiting.ended
    assert gate.waiting == 0
    with pytest.raises(RunEnded):
        gate.enter(1, 1, None)
    with pytest.raises(RunEnded):
        gate.free()


def test_many_threads_leave_it_empty():
    gate = Gate(4, 50, 20)
    most = []

    def work(seed):
        for step in range(300):
            size = (seed * 31 + step * 17) % 70 + 1
            worker = gate.enter(1, size, None if seed % 2 else seed % 4)
            most.append(gate.held().bytes)
            gate.leave(1, size, worker)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert gate.held() == (0, 0)
    assert max(most) <= 70
    assert gate.most_bytes <= 70
