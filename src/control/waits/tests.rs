use super::*;

/// A queue whose room and end need certain desks: all of them, or any.
struct Fake {
    name: &'static str,
    all: &'static [usize],
    any: &'static [usize],
}

impl Awaited for Fake {
    fn name(&self) -> &str {
        self.name
    }

    fn handler_at(&self, desk: usize) -> Option<String> {
        (self.all.contains(&desk) || self.any.contains(&desk)).then(|| format!("Type{desk}"))
    }

    fn may_come_true(&self, _wish: Wish, stuck: &Stuck) -> bool {
        let is_held = |desk: &usize| stuck.desks().any(|held| held == *desk);
        !self.all.iter().any(is_held) && (self.any.is_empty() || !self.any.iter().all(is_held))
    }

    fn needs(&self, _wish: Wish, kept: Kept) -> bool {
        kept.desk.is_some_and(|desk| self.handler_at(desk).is_some())
    }

    fn let_go(self: Arc<Self>) {}
}

const ROOM: Wish = Wish::Room { partition: 3, key: TypeKey(0) };

/// A handler with the desk waits for a queue that needs all these desks.
fn wait_for_all(table: &mut Table, desk: usize, wish: Wish, all: &'static [usize]) {
    wait_for(table, desk, wish, Fake { name: "q", all, any: &[] });
}

fn wait_for(table: &mut Table, desk: usize, wish: Wish, queue: Fake) {
    table.begun += 1;
    let (number, kept) = (table.begun, Kept { desk: Some(desk), thread_of: None });
    let queue = Arc::new(queue);
    table.records.push(Record {
        number,
        kept,
        queue,
        wish,
        waits: 1,
        call_has_ended: None,
        was_on_circle: false,
        circle: None,
    });
}

fn check(table: &mut Table) {
    table.give_up(find_circles(&table.records));
}

/// After two checks.
fn given_up(table: &mut Table) -> Vec<usize> {
    check(table);
    check(table);
    let all = table.records.iter().enumerate();
    all.filter(|(_, record)| record.circle.is_some()).map(|(index, _)| index).collect()
}

#[test]
fn of_a_circle_of_puts_the_newest_gives_up_and_names_it() {
    let mut table = Table::default();
    wait_for(&mut table, 1, ROOM, Fake { name: "b", all: &[2], any: &[] });
    assert!(given_up(&mut table).is_empty());
    wait_for(&mut table, 2, ROOM, Fake { name: "a", all: &[1], any: &[] });
    assert_eq!(given_up(&mut table), [1]);
    assert_eq!(
        table.records[1].circle.as_deref(),
        Some(
            "the handler of Type2 in queue b waits for room in partition 3 of queue a; the handler \
             of Type1 in queue a waits for room in partition 3 of queue b"
        )
    );
    // It has not ended yet: that frees the other one.
    assert_eq!(given_up(&mut table), [1]);
}

#[test]
fn a_wait_for_an_end_gives_up_before_a_put_that_is_newer() {
    let mut table = Table::default();
    wait_for_all(&mut table, 1, Wish::End, &[2]);
    wait_for_all(&mut table, 2, ROOM, &[1]);
    assert_eq!(given_up(&mut table), [0]);
}

#[test]
fn a_wait_behind_a_circle_does_not_give_up() {
    let mut table = Table::default();
    for (desk, needs) in [(1, &[2][..]), (2, &[3]), (3, &[1]), (4, &[1])] {
        wait_for_all(&mut table, desk, ROOM, needs);
    }
    assert_eq!(given_up(&mut table), [2]);
}

#[test]
fn each_of_two_circles_has_a_wait_that_gives_up() {
    let mut table = Table::default();
    for (desk, needs) in [(1, &[2][..]), (2, &[1]), (3, &[4]), (4, &[3])] {
        wait_for_all(&mut table, desk, ROOM, needs);
    }
    assert_eq!(given_up(&mut table), [3]);
    table.records.remove(3);
    assert_eq!(given_up(&mut table), [1]);
}

#[test]
fn a_wish_with_an_alternative_is_not_stuck() {
    let mut table = Table::default();
    wait_for(&mut table, 1, ROOM, Fake { name: "b", all: &[], any: &[2, 3] });
    wait_for_all(&mut table, 2, ROOM, &[1]);
    assert!(given_up(&mut table).is_empty());
    // The alternative is gone as well.
    wait_for_all(&mut table, 3, ROOM, &[2]);
    assert_eq!(given_up(&mut table), [2]);
}

#[test]
fn a_wait_gives_up_only_if_two_checks_in_a_row_find_it() {
    let mut table = Table::default();
    wait_for_all(&mut table, 1, ROOM, &[2]);
    wait_for_all(&mut table, 2, ROOM, &[1]);
    check(&mut table);
    assert!(table.records.iter().all(|record| record.circle.is_none()));
    table.records.remove(1);
    check(&mut table);
    wait_for_all(&mut table, 2, ROOM, &[1]);
    check(&mut table);
    assert!(table.records.iter().all(|record| record.circle.is_none()));
    check(&mut table);
    assert!(table.records[1].circle.is_some());
    // The circle has gone before the wait did.
    table.records.remove(0);
    check(&mut table);
    assert!(table.records[0].circle.is_none());
}

#[test]
fn a_call_that_has_ended_keeps_nothing() {
    let mut table = Table::default();
    wait_for_all(&mut table, 1, ROOM, &[2]);
    wait_for_all(&mut table, 2, ROOM, &[1]);
    let ended = Arc::new(AtomicBool::new(false));
    table.records[0].call_has_ended = Some(ended.clone());
    assert_eq!(find_circles(&table.records).len(), 2);
    ended.store(true, Ordering::Relaxed);
    assert_eq!(find_circles(&table.records).len(), 0);
}

#[test]
fn a_handler_that_waits_for_several_queues_keeps_one_thread() {
    let kept = |desk| Kept { desk: Some(desk), thread_of: Some(7) };
    let stuck = Stuck::of([kept(1), kept(1), kept(2)].into_iter());
    assert_eq!((stuck.threads_of(7), stuck.threads_of(8), stuck.desks().count()), (2, 0, 2));
}
