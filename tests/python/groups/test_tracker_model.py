"""Random histories of a partition's tracker beside a model of it, which is a list of records."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from batchqueue.groups.worker.tracker import PartitionTracker, RecordCounts

ENDED = {"handled", "dead", "skipped"}


class Model:
    """A list of chunks, each a list with the state of each record. Offsets are 10 apart."""

    def __init__(self):
        self.chunks, self.revoked, self.over = [], False, False

    def add(self, count):
        self.chunks.append(["dropped" if self.revoked else "waiting"] * count)

    def change(self, number, count, before, after):
        for _ in range(count):
            self.chunks[number][self.chunks[number].index(before)] = after

    def drop(self, numbers, states=("waiting",)):
        for number in numbers:
            chunk = self.chunks[number]
            chunk[:] = ["dropped" if state in states else state for state in chunk]

    def give_back(self, number, count):
        self.change(number, count, "running", "dropped")
        self.revoke()
        self.drop(range(number, len(self.chunks)))

    def revoke(self):
        if not self.revoked:
            begun = [n for n, chunk in enumerate(self.chunks) if set(chunk) != {"waiting"}]
            self.drop(range(begun[-1] + 1 if begun else 0, len(self.chunks)))
        self.revoked = True

    def end(self):
        self.drop(range(len(self.chunks)), ("waiting", "running"))
        self.revoked = self.over = True

    def done(self):
        """The number of records in the leading chunks that are done."""
        done = 0
        for chunk in self.chunks:
            if not set(chunk) <= ENDED:
                break
            done += len(chunk)
        return done

    def count(self, *states):
        return sum(state in states for chunk in self.chunks for state in chunk)


class TrackerHistory(RuleBasedStateMachine):
    """Random calls; every answer is compared with the model's."""

    def __init__(self):
        super().__init__()
        self.tracker = PartitionTracker(0, prefetch=12, prefetch_bytes=60)
        self.model = Model()
        self.chunks = []

    def draw_chunk(self, data, state):
        """Draws a chunk with records in that state, if any, and how many of them."""
        numbers = [n for n, chunk in enumerate(self.model.chunks) if state in chunk]
        if not numbers:
            return None, 0
        number = data.draw(st.sampled_from(numbers))
        return number, data.draw(st.integers(1, self.model.chunks[number].count(state)))

    @precondition(lambda self: not self.model.over)
    @rule(count=st.integers(1, 5))
    def add(self, count):
        first = self.tracker.position + 10
        chunk = self.tracker.add(count, first, first + 10 * (count - 1), 4 * count)
        assert (chunk is None) == self.model.revoked
        self.model.add(count)
        self.chunks.append(chunk)

    @rule(data=st.data())
    def start(self, data):
        number, count = self.draw_chunk(data, "waiting")
        if number is not None:
            assert self.tracker.start(self.chunks[number], count)
            self.model.change(number, count, "waiting", "running")

    @rule(data=st.data())
    def start_what_does_not_wait(self, data):
        numbers = [
            n
            for n, chunk in enumerate(self.model.chunks)
            if "waiting" not in chunk and self.chunks[n]
        ]
        if numbers:
            assert not self.tracker.start(self.chunks[data.draw(st.sampled_from(numbers))])

    @rule(data=st.data(), state=st.sampled_from(sorted(ENDED)))
    def settle(self, data, state):
        number, count = self.draw_chunk(data, "running")
        if number is not None:
            before = self.model.done()
            self.model.change(number, count, "running", state)
            moved = self.tracker.settle(self.chunks[number], **{state: count})
            assert moved == (self.model.done() > before)

    @rule(data=st.data())
    def give_back(self, data):
        number, count = self.draw_chunk(data, "running")
        if number is not None:
            self.tracker.give_back(self.chunks[number], count)
            self.model.give_back(number, count)

    @rule()
    def revoke(self):
        before = self.model.count("dropped")
        self.model.revoke()
        dropped = 0 if self.model.over else self.model.count("dropped") - before
        assert self.tracker.revoke() == dropped

    @precondition(lambda self: len(self.chunks) > 8)
    @rule()
    def end(self):
        before = self.model.count("dropped")
        self.model.end()
        assert self.tracker.end() == self.model.count("dropped") - before

    @rule(data=st.data())
    def acknowledge(self, data):
        to_commit = self.tracker.to_commit()
        if to_commit:
            self.tracker.acknowledge(data.draw(st.integers(0, to_commit.offset)))

    def teardown(self):
        """Lets everything end that still may, and compares the counts and the mark at rest."""
        for number, chunk in enumerate(self.model.chunks):
            waiting = chunk.count("waiting")
            running = waiting + chunk.count("running")
            if waiting:
                assert self.tracker.start(self.chunks[number])
                self.model.change(number, waiting, "waiting", "running")
            if running:
                self.tracker.settle(self.chunks[number], handled=running)
                self.model.change(number, running, "running", "handled")
        self.tracker_agrees_with_the_model()
        assert self.tracker.counts.in_hand == 0

    @invariant()
    def tracker_agrees_with_the_model(self):
        tracker, model = self.tracker, self.model
        done = model.done()
        assert tracker.mark == (10 * done, done)
        assert tracker.counts == RecordCounts(
            fetched=sum(map(len, model.chunks)),
            **{state: model.count(state) for state in (*sorted(ENDED), "dropped")},
        )
        assert tracker.counts.in_hand == model.count("waiting", "running")
        if model.over:
            assert tracker.to_commit() is None
        if not model.revoked:
            above = sum(map(len, model.chunks)) - done
            left = 12 - above, 60 - 4 * above
            assert tracker.room == (left if min(left) > 0 else (0, 0))
            assert tracker.fill == max(above / 12, 4 * above / 60)
        else:
            assert tracker.room == (0, 0)


TrackerHistory.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestTrackerHistory = TrackerHistory.TestCase
