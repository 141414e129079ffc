"""The rows of the table that are measured on Spark, and their picture."""

import statistics
from collections.abc import Callable
from pathlib import Path

from on_spark import UNLIMITED, Epoch, SparkBench, goal_s, tuned, used

Row = Callable[[str, str, Callable[[], str]], None]

PAUSE_S = 20
GROWING = 5
"""Epochs until the size has been found; the first one starts Spark's workers."""


class SparkRows:
    """Measures row by row, and keeps what the picture shows."""

    def __init__(self, bench: SparkBench, rounds: int) -> None:
        """Prepare to measure each ratio so many times."""
        self._bench = bench
        self._rounds = rounds
        self.ours: list[Epoch] = []
        self.fixed: list[Epoch] = []
        self.behind: dict[str, list[Epoch]] = {}

    def add(self, row: Row) -> None:
        """Measure all rows."""
        row(
            "share of a sink of 20,000 rows/s that epochs on Spark use",
            "≥ 0.8 where a limit tuned by hand gets 0.9",
            self._use,
        )
        row(
            f"first epoch on Spark behind a pause of {PAUSE_S} s, rows coming at half that rate",
            "≤ 2 x the goal",
            self._behind_a_pause,
        )
        for reads_files, what in (
            (False, "batch on Spark from a DataFrame, to `mapInArrow` and the sink by hand"),
            (True, "the same from files by `FileSource`, to Spark's own reader by hand"),
        ):
            row(what, "≥ 0.95", lambda reads_files=reads_files: self._by_hand(reads_files))

    def _use(self) -> str:
        ours, fixed, limit = [], [], 0
        for _ in range(self._rounds):
            self.ours = self._bench.of_our_size()
            steady = self.ours[GROWING:] or self.ours[1:]
            limit = limit or tuned(steady)
            self.fixed = self._bench.of_a_limit(limit)
            ours.append(used(steady))
            fixed.append(used(self.fixed[1:]))
            cost = statistics.median(epoch.fixed_s for epoch in steady)
        return (
            f"{statistics.median(ours):.2f} where {limit:,} rows get "
            f"{statistics.median(fixed):.2f}; an epoch costs {cost:.2f} s beside its sink"
        )

    def _behind_a_pause(self) -> str:
        found = []
        for _ in range(self._rounds):
            self.behind = {
                "ours": self._bench.after_a_pause(PAUSE_S),
                "no limit": self._bench.after_a_pause(PAUSE_S, **UNLIMITED),
            }
            goal = goal_s(self.behind["ours"])
            found.append({name: epochs[-1].busy_s / goal for name, epochs in self.behind.items()})
        ours = max(each["ours"] for each in found)
        unlimited = statistics.median(each["no limit"] for each in found)
        return f"{ours:.2f} x, the worst of {len(found)}; {unlimited:.1f} x without a limit"

    def _by_hand(self, reads_files: bool) -> str:
        ours, hand, ratio = self._bench.beside_by_hand(self._rounds, reads_files=reads_files)
        return f"{ratio:.2f}; {ours:.2f} s beside {hand:.2f} s"

    def picture(self, path: Path) -> None:
        """Draw the seconds of epochs: while their size is found, and around the pause."""
        import matplotlib as mpl

        mpl.use("Agg")
        import matplotlib.pyplot as plt

        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), sharey=False)
        fixed = f"a fixed limit of {max(epoch.rows for epoch in self.fixed):,} rows"
        for name, epochs, color in (
            ("sized by their busy time", self.ours, "#1f77b4"),
            (fixed, self.fixed, "#b0b0b0"),
        ):
            left.plot([epoch.busy_s for epoch in epochs], "o-", color=color, label=name)
        left.set_title("From the start", fontsize=9)
        for name, color in (("ours", "#1f77b4"), ("no limit", "#b0b0b0")):
            epochs = self.behind[name][-5:]
            label = "sized by their busy time" if name == "ours" else "without a limit"
            places = range(1 - len(epochs), 1)
            right.plot(places, [epoch.busy_s for epoch in epochs], "o-", color=color, label=label)
        right.set_title(f"The last one behind a pause of {PAUSE_S} s", fontsize=9)
        for axes, epochs in ((left, self.ours), (right, self.behind["ours"])):
            axes.axhline(
                goal_s(epochs), color="#2ca02c", linewidth=1, linestyle="--", label="the goal"
            )
            axes.set_ylim(bottom=0)
            axes.set_xlabel("epoch", fontsize=8)
            axes.set_ylabel("busy, seconds", fontsize=8)
            axes.tick_params(labelsize=8)
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(fontsize=7, frameon=False)
        figure.tight_layout()
        figure.savefig(path, dpi=110)
