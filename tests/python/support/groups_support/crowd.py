"""Groups of many workers."""

from collections import Counter

from core_support.waits import WAIT_S, eventually
from groups_support.chaos import KafkaGroup, Process, once_there


class Crowd(KafkaGroup):
    """A group of many workers, each of which takes a second of a core to start."""

    limit_s = 4 * WAIT_S

    def launch(self, *names):
        """Starts workers together."""
        for name in names:
            self._run(name)
        self.settles()

    def _run(self, name):
        self.processes[name] = Process(name, self._settings, self._folder / f"{name}.log")

    def supervise(self):
        """Starts workers again that could not start, because the brokers took ten seconds."""
        for name, each in list(self.processes.items()):
            if each.process.poll() == 1 and "StreamUnavailableError" in each.errors:
                each.kill()
                self._run(name)

    def settles(self):
        """Waits until the living workers share all partitions evenly."""
        names = set(self.processes)
        least = self.partitions // len(names)

        def is_settled():
            self.supervise()
            shares = Counter(self.owners().values())
            is_there = self.monitor.metrics().members.keys() == shares.keys() == names
            return is_there and all(least <= each <= least + 1 for each in shares.values())

        what = f"{sorted(names)} share the partitions evenly"
        eventually(once_there(is_settled), what, self.limit_s)

    def owned(self):
        """Returns the owner and the token of each partition."""
        partitions = self.monitor.metrics().partitions
        return {number: (each.owner, each.token) for number, each in partitions.items()}

    def is_done(self):
        is_stored = once_there(lambda: self.count() >= self.sent)
        eventually(is_stored, "all records are stored", self.limit_s)
        is_committed = once_there(lambda: self.monitor.metrics().lag == 0)
        eventually(is_committed, "all records are committed", self.limit_s)

    def end_together(self, names):
        """Lets some leave together, and returns their summaries."""
        rest = {name: self.processes.pop(name) for name in self.processes.keys() - names}
        summaries = self.end_all()
        self.processes = rest
        return summaries
