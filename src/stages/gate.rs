//! `Gate`: which chunks a stage holds, and which wait for room, in order.

/// Rows and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

/// A chunk that wants to enter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    /// The worker that must have it; `None` for any.
    pub(crate) worker: Option<usize>,
    pub(crate) size: Amount,
}

/// A chunk that waits, and what is notified when it has entered.
#[derive(Debug)]
struct Waiter<T> {
    wish: Wish,
    ticket: T,
}

/// Admits chunks into a stage.
///
/// A chunk enters if the stage then holds at most `max_bytes` and its worker at most `worker_rows`.
/// A stage that is empty admits any chunk, and a worker that is empty any number of rows. A chunk
/// overtakes only those that wait for rows of their worker, so a large one has its turn.
///
/// The thread that makes room gives it to those that wait: a waiting chunk is inside before its
/// thread wakes, and no thread wakes in vain.
#[derive(Debug)]
pub(crate) struct Gate<T> {
    max_bytes: u64,
    worker_rows: u64,
    /// The rows of each worker.
    held_rows: Vec<u64>,
    held: Amount,
    chunks: u64,
    most_bytes: u64,
    /// The worker whose turn it is.
    next: usize,
    waiting: Vec<Waiter<T>>,
}

impl<T> Gate<T> {
    pub(crate) fn new(workers: usize, max_bytes: u64, worker_rows: u64) -> Self {
        Self {
            max_bytes,
            worker_rows,
            held_rows: vec![0; workers],
            held: Amount::default(),
            chunks: 0,
            most_bytes: 0,
            next: 0,
            waiting: Vec::new(),
        }
    }

    pub(crate) fn worker_rows(&self) -> u64 {
        self.worker_rows
    }

    pub(crate) fn held(&self) -> Amount {
        self.held
    }

    pub(crate) fn most_bytes(&self) -> u64 {
        self.most_bytes
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Lets a chunk in and returns its worker, or `None` if it has to wait.
    pub(crate) fn enter(&mut self, wish: Wish) -> Option<usize> {
        let is_behind = |waiter: &Waiter<T>| self.worker_with_room(waiter.wish).is_some();
        if self.waiting.iter().any(is_behind) {
            return None;
        }
        let worker = self.worker_with_room(wish).filter(|_| self.has_bytes(wish))?;
        self.admit(wish, worker);
        Some(worker)
    }

    /// Has a chunk wait behind the others. Call it only after `enter` has returned `None`.
    pub(crate) fn line_up(&mut self, wish: Wish, ticket: T) {
        self.waiting.push(Waiter { wish, ticket });
    }

    /// Takes back the room of chunks that are completed, and returns the tickets of the chunks that
    /// have entered instead, with their workers.
    pub(crate) fn leave(&mut self, size: Amount, worker: usize, chunks: u64) -> Vec<(T, usize)> {
        let rows = &mut self.held_rows[worker];
        debug_assert!(*rows >= size.rows && self.chunks >= chunks, "left twice");
        *rows = rows.saturating_sub(size.rows);
        self.held.rows = self.held.rows.saturating_sub(size.rows);
        self.held.bytes = self.held.bytes.saturating_sub(size.bytes);
        self.chunks = self.chunks.saturating_sub(chunks);
        if self.waiting.is_empty() { Vec::new() } else { self.admit_waiting() }
    }

    /// Returns the tickets of all that wait, which will not enter.
    pub(crate) fn turn_away(&mut self) -> Vec<T> {
        self.waiting.drain(..).map(|waiter| waiter.ticket).collect()
    }

    /// Returns what may still enter, or `None` if that is not even a row.
    pub(crate) fn free(&self) -> Option<Amount> {
        let most_rows = self.worker_rows.saturating_mul(self.held_rows.len() as u64);
        let is_full = self.chunks > 0 && self.held.bytes >= self.max_bytes;
        (self.held.rows < most_rows && !is_full).then(|| Amount {
            rows: most_rows - self.held.rows,
            bytes: self.max_bytes.saturating_sub(self.held.bytes).max(1),
        })
    }

    fn admit_waiting(&mut self) -> Vec<(T, usize)> {
        let mut entered = Vec::new();
        let mut place = 0;
        while let Some(waiter) = self.waiting.get(place) {
            let wish = waiter.wish;
            match self.worker_with_room(wish) {
                None => place += 1,
                Some(worker) if self.has_bytes(wish) => {
                    self.admit(wish, worker);
                    entered.push((self.waiting.remove(place).ticket, worker));
                }
                // It waits for bytes, and those behind it for their turn.
                Some(_) => break,
            }
        }
        entered
    }

    fn admit(&mut self, wish: Wish, worker: usize) {
        self.next = (worker + 1) % self.held_rows.len();
        self.held_rows[worker] += wish.size.rows;
        self.chunks += 1;
        self.held.rows += wish.size.rows;
        self.held.bytes += wish.size.bytes;
        self.most_bytes = self.most_bytes.max(self.held.bytes);
    }

    fn has_bytes(&self, wish: Wish) -> bool {
        self.chunks == 0 || self.held.bytes.saturating_add(wish.size.bytes) <= self.max_bytes
    }

    fn worker_with_room(&self, wish: Wish) -> Option<usize> {
        let held = &self.held_rows;
        // In turn; but a worker that hangs gets no more than its room.
        let worker = wish.worker.or_else(|| {
            let workers = (self.next..held.len()).chain(0..self.next);
            workers.min_by_key(|&worker| held[worker])
        })?;
        let rows = held[worker];
        let has_room = rows == 0 || rows.saturating_add(wish.size.rows) <= self.worker_rows;
        has_room.then_some(worker)
    }
}
