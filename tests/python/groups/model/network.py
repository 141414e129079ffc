"""Simulated time, and calls that arrive late, several times, or not at all."""

import heapq
import itertools
from dataclasses import dataclass

EPOCH_US = 1_700_000_000_000_000


@dataclass(frozen=True)
class Profile:
    """What may happen in a run. Probabilities are per call or wake-up; weights are of actions."""

    name: str
    late: float = 0.0
    repeated: float = 0.0
    lost: float = 0.0
    lost_wakes: float = 0.0
    actions: tuple[tuple[str, int], ...] = ()
    calm: bool = True
    lease_ms: int = 400

    @property
    def weights(self):
        return dict(self.actions)


class Scheduler:
    """Events by time, in microseconds; those of the same time in the order they were made."""

    def __init__(self):
        self.now = 0
        self._events = []
        self._order = itertools.count()

    def after(self, delay_us, function, *arguments):
        entry = (self.now + max(0, int(delay_us)), next(self._order), function, arguments)
        heapq.heappush(self._events, entry)

    def run(self, until):
        while self._events and self._events[0][0] <= until:
            self.now, _, function, arguments = heapq.heappop(self._events)
            function(*arguments)
        self.now = until


class Network:
    """Carries calls between workers and servers."""

    def __init__(self, scheduler, random, profile, lease_ms):
        self.scheduler, self.random = scheduler, random
        self.profile = profile
        self.lease_us = lease_ms * 1_000
        self.down_until = 0

    def delay(self):
        return self.random.randint(200, 2_000)

    def call(self, worker, script, answered, failed, timeout_us, *, may_be_late=True):
        """Run `script` some time later; then `answered(reply)` or, if late, `failed()`."""
        random, profile, after = self.random, self.profile, self.scheduler.after
        settled = []

        def time_out():
            if not settled:
                settled.append(True)
                worker.locally(failed)

        def answer(reply):
            # A driver cannot distinguish a late reply of a call that it has given up.
            if settled:
                return
            settled.append(True)
            worker.locally(answered, reply)

        def execute(reply_lost):
            if self.scheduler.now < self.down_until:
                return
            reply = script()
            if not reply_lost:
                late = random.random() < profile.late and not profile.calm
                after(
                    random.randint(0, self.lease_us // 4) if late else self.delay(), answer, reply
                )

        after(timeout_us, time_out)
        delay = self.delay()
        if random.random() < profile.late and (may_be_late or not profile.calm):
            delay = random.randint(0, self.lease_us)
        elif random.random() < profile.late:
            delay = random.randint(0, self.lease_us // 8)
        if random.random() >= profile.lost:
            after(delay, execute, random.random() < profile.lost)
        if random.random() < profile.repeated:
            after(random.randint(0, 2 * self.lease_us), execute, True)
