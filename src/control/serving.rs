//! How many registrations of a queue each handler instance serves, so that no scan over all types
//! decides whether it serves one.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `counts` | registration and removal, under the control lock | the same; drain threads |

use rustc_hash::FxHashMap;

use crate::flow::handler::HandlerRef;
use crate::sync::Mutex;

#[derive(Debug, Default)]
pub(crate) struct Serving {
    /// By the address of the instance, which the registration keeps alive. No entry is 0. Locked
    /// last of all.
    counts: Mutex<FxHashMap<usize, usize>>,
}

impl Serving {
    /// The instances have one more type, each as often as it is listed.
    pub(super) fn add<'a, T: 'a>(&self, instances: impl Iterator<Item = &'a HandlerRef<T>>) {
        let mut counts = self.counts.lock();
        for instance in instances {
            *counts.entry(instance.address()).or_default() += 1;
        }
    }

    /// The reverse of [`add`](Self::add).
    pub(super) fn remove<'a, T: 'a>(&self, instances: impl Iterator<Item = &'a HandlerRef<T>>) {
        let mut counts = self.counts.lock();
        for instance in instances {
            let Some(count) = counts.get_mut(&instance.address()) else { continue };
            *count -= 1;
            if *count == 0 {
                counts.remove(&instance.address());
            }
        }
    }

    /// Whether the instance serves a type.
    pub(crate) fn includes<T>(&self, instance: &HandlerRef<T>) -> bool {
        self.counts.lock().contains_key(&instance.address())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::flow::handler::Batch;

    #[test]
    fn an_instance_serves_until_it_has_left_each_of_its_types() {
        let serving = Serving::default();
        let [first, second] = [(); 2].map(|()| HandlerRef::new(|_: &mut Batch<u64>| {}));
        let twice = [first.clone(), first.clone()];
        serving.add(twice.iter());
        serving.add([&first, &second].into_iter());
        serving.remove(twice.iter());
        assert!(serving.includes(&first) && serving.includes(&second));
        serving.remove([&first, &second].into_iter());
        assert!(!serving.includes(&first) && !serving.includes(&second));
        assert!(serving.counts.lock().is_empty());
    }
}
