//! How a drain thread serves the boxes of dead letters; see `handler/dead_letters.rs`.

use crate::flow::desk::call::call;
use crate::flow::handler::dead_letters::DeadLetterBox;
use crate::flow::handler::dispatch_log::Problem;
use crate::flow::handler::drop_items::DropPanics;
use crate::flow::handler::{DeadLetters, HandlerRef};
use crate::flow::state::Flow;
use crate::flow::turn::task::DrainTask;
use crate::item::{Item, TypeKey, counted};
use crate::observe::{Calling, Outcome};
use crate::sync::{Arc, Instant};
use crate::thread_context::HandlerScope;

impl<T: Item> DrainTask<T> {
    /// Calls the handlers of dead letters that no thread is inside. Inside no partition, with
    /// nothing in hand.
    pub(super) fn serve_dead_letters(&mut self) {
        let flow = self.flow.clone();
        let boxes = &flow.dead_letters;
        if !boxes.are_waiting() {
            return;
        }
        let is_expired = flow.ending.is_expired();
        flow.host.enter(&mut || {
            for letter_box in boxes.with_letters() {
                let desk = &letter_box.handler.desk;
                if is_expired {
                    // They were counted as abandoned.
                    self.serve_at_desk(&letter_box);
                } else if desk.try_enter(flow.address()) {
                    self.serve_at_desk(&letter_box);
                    flow.release(desk, false);
                }
            }
        });
    }

    /// Before the last call of a handler, at its desk: the letters that are left for it.
    pub(super) fn serve_letters_of(&mut self, handler: &HandlerRef<T>) {
        for letter_box in self.flow.dead_letters.with_letters() {
            if letter_box.handler.is(handler) {
                self.serve_at_desk(&letter_box);
            }
        }
    }

    fn serve_at_desk(&mut self, letter_box: &Arc<DeadLetterBox<T>>) {
        let flow = self.flow.clone();
        loop {
            let (letters, refused) = letter_box.take(flow.config.max_batch_items);
            for place in refused {
                flow.recall_job(place, letter_box.address());
            }
            if letters.is_empty() {
                if flow.dead_letters.unlist(letter_box) {
                    return;
                }
                continue;
            }
            self.call_with_letters(letter_box, letters);
        }
    }

    /// One call, and one attempt.
    fn call_with_letters(&mut self, to: &DeadLetterBox<T>, mut letters: Vec<DeadLetters<T>>) {
        let flow = self.flow.clone();
        let items: usize = letters.iter().map(|letters| letters.items.len()).sum();
        let (handler, tally, start) = (&to.handler, &self.slot().tally, Instant::now());
        if tally.begin_call(Calling::Named(to.name.clone()), start) {
            flow.watch_turn();
            let holding = HandlerScope::of(&handler.desk);
            let _compensation = flow.compensate_for(handler);
            let result = call(&to.name, || handler.handler.consume_dead_letters(&mut letters));
            drop(holding);
            let outcome = if result.is_ok() { Outcome::DeadLettered } else { Outcome::Failed };
            let counts = tally.settle(outcome, items as u64);
            if let (Err(failure), true) = (result, counts) {
                let items = items as u64;
                self.note_letters(to, Problem::LostLetters, items, &failure.message);
            }
        }
        // What is left, here in the host.
        let mut panics = DropPanics::default();
        for letter in letters {
            panics.drop_batch(letter.items);
        }
        if let Some((items, cause)) = panics.report() {
            self.note_letters(to, Problem::DropPanicked, items, &cause);
        }
        to.settle(items, start.elapsed());
        flow.notify_flushes();
    }

    fn note_letters(&mut self, to: &DeadLetterBox<T>, problem: Problem, items: u64, cause: &str) {
        let (flow, name) = (&self.flow, &to.name);
        let queue = &flow.name;
        let line = |items: u64| {
            let (text, items) = (problem.text(items), counted(items, "item"));
            let line = format!("queue {queue}: {items} {text} ({name}): {cause}");
            (name.to_string(), line)
        };
        // One subject for each handler.
        let key = TypeKey(to.handler.address());
        if let Some(line) = flow.dispatch_log.note(queue, problem, key, items, line) {
            flow.warn(line);
        }
    }
}

impl<T: Item> Flow<T> {
    /// Whether there are dead letters whose handler no thread is inside. If one is, the queue hears
    /// when it leaves. The caller has fenced.
    pub(crate) fn has_dead_letters(self: &Arc<Self>) -> bool {
        self.dead_letters.are_waiting()
            && self
                .dead_letters
                .with_letters()
                .iter()
                .any(|letter_box| letter_box.handler.desk.is_free(&self.watcher()))
    }
}
