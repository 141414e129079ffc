//! The memory that a queue allocates for 1,000 types with room for 20,000 items each: unused, then
//! with all partitions filled and drained. And the memory that it keeps for 300 types with items of
//! 1 KiB: once drained, and after three idle seconds. The figure is the allocator's count of live
//! bytes. Run with `cargo bench --bench memory`.

mod workload;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use batchqueue::{
    Batch, BatchQueue, Config, HandlerRef, Item, PartitionPolicy, ThreadPolicy, TypeKey, Wait,
};
use workload::{Line, Metric, is_test_run};

const TYPES: usize = 1_000;
const BUFFER: usize = 20_000;

const LARGE_TYPES: usize = 300;
const LARGE_BUFFER: usize = 1_000;

/// An item of 1 KiB.
struct Large {
    kind: usize,
    _content: [u8; 1_024 - size_of::<usize>()],
}

impl Item for Large {
    fn type_key(&self) -> TypeKey {
        TypeKey(self.kind)
    }
}

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

/// Returns the resident size of the process, where the system reports it.
fn resident() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or("VmRSS: unknown").to_owned()
}

fn config(buffer_size: usize) -> Config {
    Config {
        threads: ThreadPolicy::fixed(8).expect("a valid count"),
        partitions: PartitionPolicy::adaptive(125).expect("a valid multiplier"),
        buffer_size,
        min_idle: Duration::from_millis(1),
        ..Config::default()
    }
}

fn main() {
    if is_test_run() {
        return;
    }
    small_items();
    large_items();
}

fn small_items() {
    let queue = BatchQueue::<Metric>::builder("memory", config(BUFFER)).start();
    let queue = queue.expect("a valid config");
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

fn large_items() {
    let queue = BatchQueue::<Large>::builder("memory", config(LARGE_BUFFER)).start();
    let queue = queue.expect("a valid config");
    let before = LIVE.load(Ordering::Relaxed);
    for kind in 0..LARGE_TYPES {
        queue
            .add_handler(TypeKey(kind), HandlerRef::new(|_: &mut Batch<Large>| {}))
            .expect("a new type");
    }
    for kind in 0..LARGE_TYPES {
        let item = || Large { kind, _content: [0; 1_024 - size_of::<usize>()] };
        let items: Vec<_> = std::iter::repeat_with(item).take(LARGE_BUFFER).collect();
        assert!(queue.produce_many(&mut items.into_iter(), None, &mut Wait).is_ok());
    }
    assert_eq!(queue.flush(None, &mut Wait), Ok(true));
    let drained = megabytes_since(before);
    std::thread::sleep(Duration::from_secs(3));
    let idle = megabytes_since(before);
    println!("items of 1 KiB: {drained:.2} MB drained, {idle:.2} MB idle; {}", resident());
    assert_eq!(queue.shutdown(None), 0);
    Line {
        row: "8",
        workload: "memory, 300 types of 1,000 items of 1 KiB",
        wanted: "filled and drained: below 8 MB still allocated; idle for 3 s: below 4 MB",
    }
    .print(drained < 8.0 && idle < 4.0, &format!("{drained:.2} MB; {idle:.2} MB"));
}
