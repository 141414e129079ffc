//! What a queue allocates: 1,000 types with room for 20,000 items each, never used; then all
//! partitions filled and drained. The figure is the allocator's count of live bytes. Run with
//! `cargo bench --bench memory`.

mod workload;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use batchqueue::{
    Batch, BatchQueue, Config, HandlerRef, PartitionPolicy, ThreadPolicy, TypeKey, Wait,
};
use workload::{Line, Metric, is_test_run};

const TYPES: usize = 1_000;
const BUFFER: usize = 20_000;

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded unchanged to the system's allocator; the counter does not affect
// it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[allow(clippy::cast_precision_loss)]
fn megabytes_since(before: usize) -> f64 {
    LIVE.load(Ordering::Relaxed).saturating_sub(before) as f64 / 1e6
}

/// The resident size of the process, where the system reports it.
fn resident() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or("VmRSS: unknown").to_owned()
}

fn main() {
    if is_test_run() {
        return;
    }
    let config = Config {
        threads: ThreadPolicy::fixed(8).expect("a valid count"),
        partitions: PartitionPolicy::adaptive(125).expect("a valid multiplier"),
        buffer_size: BUFFER,
        min_idle: Duration::from_millis(1),
        ..Config::default()
    };
    let queue = BatchQueue::<Metric>::builder("memory", config).start().expect("a valid config");
    let before = LIVE.load(Ordering::Relaxed);
    for kind in 0..TYPES {
        queue
            .add_handler(TypeKey(kind), HandlerRef::new(|_: &mut Batch<Metric>| {}))
            .expect("a new type");
    }
    let fresh = megabytes_since(before);
    println!("{} partitions of {BUFFER} items, never used: {fresh:.2} MB", queue.partition_count());
    for kind in 0..TYPES {
        let items: Vec<Metric> = (0..BUFFER as u64).map(|value| Metric { kind, value }).collect();
        assert!(queue.produce_many(&mut items.into_iter(), None, &mut Wait).is_ok());
    }
    assert_eq!(queue.flush(None, &mut Wait), Ok(true));
    let drained = megabytes_since(before);
    println!("all filled and drained: {drained:.2} MB still allocated; {}", resident());
    assert_eq!(queue.shutdown(None), 0);
    Line {
        row: "8",
        workload: "memory, 1,000 types of 20,000 items",
        wanted: "never used: below 4 MB; filled and drained: below 20 MB still allocated",
    }
    .print(fresh < 4.0 && drained < 20.0, &format!("{fresh:.2} MB; {drained:.2} MB"));
}
