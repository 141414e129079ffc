//! Which handler the items of a class go to, if it is not simply that of the class itself: the
//! nearest base class whose handler takes subclasses, or else the default handler.
//!
//! It is decided when an item is enqueued, and kept with the item as its type key: from there on
//! the core knows nothing of subclasses. What was found is cached per class, and forgotten when
//! handlers come and go.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyType, PyWeakrefMethods, PyWeakrefReference};

use super::known::Entries;
use crate::TypeKey;

/// The key of all items that go to the default handler. Not an address, and not the key of a tag.
pub(crate) const DEFAULT: TypeKey = TypeKey(2);

/// The most classes that are cached: then all are forgotten.
const MOST_CACHED: usize = 1 << 16;

/// The keys of classes that have been asked for.
#[derive(Default)]
pub(super) struct Resolution {
    /// Whether a class may have another key than its own.
    is_needed: AtomicBool,
    cache: Mutex<Cache>,
}

#[derive(Default)]
struct Cache {
    /// How often it was cleared.
    version: u64,
    /// By address, which another class may have later: the reference shows that.
    keys: HashMap<usize, (Py<PyWeakrefReference>, TypeKey)>,
}

impl Resolution {
    /// Whether a class may have another key than its own.
    #[inline]
    pub(super) fn is_needed(&self) -> bool {
        // Relaxed: a producer that runs beside the first registration may be before or after it.
        self.is_needed.load(Ordering::Relaxed)
    }

    /// From here on a class may have another key than its own.
    pub(super) fn need(&self) {
        self.is_needed.store(true, Ordering::Relaxed);
    }

    /// After handlers have come or gone.
    pub(super) fn forget(&self) {
        if self.is_needed() {
            let mut cache = self.cache.lock();
            cache.version += 1;
            let former = std::mem::take(&mut cache.keys);
            drop(cache);
            drop(former);
        }
    }

    /// The key of the items of a class.
    pub(super) fn key_of(
        &self,
        class: &Bound<'_, PyType>,
        entries: &Mutex<Entries>,
    ) -> PyResult<TypeKey> {
        let (address, version) = (class.as_ptr() as usize, {
            let cache = self.cache.lock();
            if let Some((known, key)) = cache.keys.get(&(class.as_ptr() as usize))
                && known.bind(class.py()).upgrade().is_some_and(|it| it.is(class))
            {
                return Ok(*key);
            }
            cache.version
        });
        let bases = class.mro();
        let key = {
            let entries = entries.lock();
            let mut bases = bases.iter().map(|base| TypeKey(base.as_ptr() as usize));
            let own = TypeKey(address);
            bases
                .find(|&base| entries.takes(base, base != own))
                .unwrap_or_else(|| if entries.has_default() { DEFAULT } else { own })
        };
        let reference = PyWeakrefReference::new(class)?.unbind();
        let mut cache = self.cache.lock();
        // Handlers that came or went meanwhile may have changed the answer.
        if cache.version == version {
            let all = (cache.keys.len() >= MOST_CACHED).then(|| std::mem::take(&mut cache.keys));
            let former = cache.keys.insert(address, (reference, key));
            drop(cache);
            drop((all, former));
        }
        Ok(key)
    }
}
