"""The loops of a worker's threads. Each ends when the membership is stopping.

| thread | does | never |
|---|---|---|
| control | makes the calls of the control side, obeys its orders, runs timers | calls user code |
| listener | waits for changes of the group, reads lags | waits for anything else |
| reader | fetches for partitions that have credits | waits for a handler |
| committer | opens partitions, and commits what is done | calls user code |
| handover | calls `on_assign`, `on_revoke`, `on_lost` and factories | does anything else |
| drain threads | decode, and call handlers | wait |
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from batchqueue.base.background_log import BackgroundLog
from batchqueue.groups.backend import SetAside
from batchqueue.groups.errors import ReplacedError, StreamUnavailableError
from batchqueue.groups.messages import CallKind, Failed, Fenced
from batchqueue.groups.worker.held import HeldPartition, ReadState
from batchqueue.groups.worker.membership import (
    Aside,
    Membership,
    accepted,
    check_gap,
    commit_refused,
    opened,
    take,
    to_fetch,
    to_open,
    wait_after,
)

_log = BackgroundLog("batchqueue")


_READ_WAIT_MS = 50
"""The least time that a read waits for records. A partition added meanwhile is read afterwards."""

_PARTITIONS_PER_MS = 10
"""The wait is at least a millisecond for this number of partitions: each read costs microseconds
per partition."""

_BUSY_WAIT_MS = 2
"""How long a read waits while another partition is full, which is also read only afterwards."""

_LISTEN_S = 0.5
_STUCK_S = 1.0
_LAGS_MS = 1_000
"""The time between two readings of lags; with thousands of partitions 2 ms for each."""

_PAUSE_S = 0.05
"""The pause after a call to a server that cannot be reached."""


def guarded(member: Membership, loop: Callable[[], None]) -> None:
    """Run a loop. If it fails, the worker stops with the error."""
    try:
        loop()
    except BaseException as error:
        member.abort(error)


def control_loop(member: Membership) -> None:
    """Make the calls of the control side until it has ended."""
    control, connection = member.control, member.connection
    last_beat_ms = float("inf")
    while True:
        with member.lock:
            now = member.now_ms()
            call = control.next_call(now)
            member.obey(control.orders())
            member.run_timers(now)
            if control.ended or member.is_stopping:
                member.over.notify_all()
                if control.replaced_by is not None and member.error is None:
                    by = control.replaced_by
                    member.error = ReplacedError(control.name, by.host, by.pid)
                return
            if call is None:
                due = min(control.due_ms(now), member.next_timer_ms())
                wait_s = min((due - now) / 1_000, connection.longest_wait_s, 60.0)
                if wait_s > 0:
                    member.control_due.wait(wait_s)
                continue
            if call.kind is CallKind.BEAT:
                _note_beat(member, now - last_beat_ms)
                last_beat_ms = now
        try:
            reply = connection.perform(control, control.planned(call))
        except StreamUnavailableError as error:
            with member.lock:
                if member.notes.may_log("control") is not None:
                    _log.warning("group %s: %s", member.settings.group, error)
                control.failed(call, member.now_ms())
        else:
            with member.lock:
                control.reply(call, reply, member.now_ms())
                member.obey(control.orders())
                member.proceed()
                if call.kind is CallKind.PLAN:
                    _note_plan_error(member)


def listen_loop(member: Membership) -> None:
    """Report changes of the group to the control side, and read the lags periodically."""
    version, lags_at_ms = 0, 0.0
    while not member.is_stopping:
        try:
            seen = member.connection.wait(version, _LISTEN_S)
            if member.now_ms() >= lags_at_ms:
                _read_lags(member)
                lags_at_ms = member.now_ms() + max(_LAGS_MS, 2 * len(member.held))
        except StreamUnavailableError:
            time.sleep(_PAUSE_S)
            continue
        if seen != version:
            version = seen
            with member.lock:
                member.control.notice(version)
                member.control_due.notify()


def read_loop(member: Membership) -> None:
    """Fetch records for the partitions that have credits."""
    while True:
        with member.lock:
            if member.is_stopping:
                return
            chosen = to_fetch(member)
            # A full partition may have room again in a moment.
            is_busy = any(
                held.is_running and held.reading is ReadState.FULL for held in member.held.values()
            )
            idle_ms = max(_READ_WAIT_MS, len(chosen) // _PARTITIONS_PER_MS)
            wait_ms = _BUSY_WAIT_MS if is_busy else idle_ms
            if not chosen:
                member.reader_due.wait(min(0.5, member.connection.longest_wait_s))
                continue
        try:
            fetched = member.connection.read([fetch for _, fetch in chosen], wait_ms)
        except StreamUnavailableError as error:
            with member.lock:
                member.disconnected(error)
            time.sleep(_PAUSE_S)
            continue
        with member.lock:
            take(member, {fetch.partition: held for held, fetch in chosen}, fetched)


def commit_loop(member: Membership) -> None:
    """Open partitions, and commit what is done."""
    while True:
        with member.lock:
            while not (member.to_open or member.to_set_aside or member.dirty or member.is_stopping):
                member.commits_due.wait()
            if member.is_stopping:
                return
            openings = to_open(member)
            letters, member.to_set_aside = member.to_set_aside, []
            commits = _to_commit(member)
        try:
            if openings:
                _open(member, openings)
            if letters:
                _set_aside(member, letters)
            if commits:
                _commit(member, commits)
        except StreamUnavailableError as error:
            with member.lock:
                member.disconnected(error)
            time.sleep(_PAUSE_S)


def _read_lags(member: Membership) -> None:
    with member.lock:
        holdings = list(member.held.values())
    partitions = [held.partition for held in holdings]
    infos = member.connection.infos(partitions) if partitions else []
    with member.lock:
        member.lags = {}
        for held, info in zip(holdings, infos, strict=True):
            if isinstance(info, Failed):  # opening or reading it fails as well, and reports it
                member.lags[held.partition] = None
                continue
            member.lags[held.partition] = info.lag
            check_gap(member, held, info)
        _note_stuck(member)
        member.skew.watch(member)


def _note_plan_error(member: Membership) -> None:
    """Log that the balancer made no plan, so that partitions are planned by load."""
    error = member.control.plan_error
    if error is not None and member.notes.may_log("plan") is not None:
        _log.error("%s: %s; the partitions are spread by load instead", member.stream, error)


def _note_stuck(member: Membership) -> None:
    """Log what a handover is waiting for."""
    now, notes = member.now_ms(), member.notes
    for held in member.held.values():
        for lane in member.lanes_of(held) if held.is_draining else ():
            stuck_s = lane.stuck_ms(now) / 1_000
            key = f"{held.partition}:handover"
            if stuck_s >= _STUCK_S and notes.may_log(key) is not None:
                _log.warning(
                    "%s/%d: handover waits %.0f s for %s",
                    *(member.stream, held.partition, stuck_s, lane.name),
                )
    stuck_s = member.handover.stuck_ms(now) / 1_000
    if stuck_s >= _STUCK_S and notes.may_log("callback") is not None:
        _log.warning("%s: a callback has been running for %.0f s", member.stream, stuck_s)


def _note_beat(member: Membership, since_ms: float) -> None:
    """Count and log a late beat."""
    lease_ms = member.control.lease_ms
    if since_ms > lease_ms / 2:
        member.notes.late_beats += 1
        if member.notes.may_log("late") is not None:
            _log.warning(
                "heartbeat %.1f s late, lease %g s: a handler holds the GIL, or the host is "
                "overloaded",
                (since_ms - lease_ms / 4) / 1_000,
                lease_ms / 1_000,
            )


def _to_commit(member: Membership) -> list[tuple[HeldPartition, Any]]:
    commits = []
    for held in list(member.dirty):
        request = held.next_commit()
        if request is not None and member.may_work(held):
            commits.append((held, request))
    member.dirty.clear()
    return commits


def _open(member: Membership, openings: list[tuple[HeldPartition, Any]]) -> None:
    replies = member.connection.open([each for _, each in openings], member.settings.start)
    with member.lock:
        for (held, _), reply in zip(openings, replies, strict=True):
            opened(member, held, reply)


def _set_aside(member: Membership, letters: list[Aside]) -> None:
    requests = [
        SetAside(held.partition, held.token, held.session, (letter,))
        for held, letter, _, _ in letters
    ]
    replies = member.connection.set_aside(requests)
    with member.lock:
        for each, reply in zip(letters, replies, strict=True):
            held, _, then, give_up = each
            if held.is_over:
                continue
            if isinstance(reply, Fenced):
                member.fenced(held, reply.token)
            elif isinstance(reply, int):
                accepted(member, held)
                then()
            elif held.is_draining:
                give_up()
            else:
                wait_after(member, held, reply, partial(member.set_aside, *each))


def _commit(member: Membership, commits: list[tuple[HeldPartition, Any]]) -> None:
    replies = member.connection.commit([request for _, request in commits])
    with member.lock:
        for (held, _), reply in zip(commits, replies, strict=True):
            if isinstance(reply, Fenced):
                member.fenced(held, reply.token)
            elif not isinstance(reply, Failed):
                member.committed(held)
            elif not held.is_over:
                commit_refused(member, held, reply)
