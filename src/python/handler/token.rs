//! The entry tokens of handler instances, which keep P1 across types and queues.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::EntryToken;

/// The entry tokens of all handler instances of the process, by address. A holder of a token also
/// holds the object, so an address never stands for another object.
static TOKENS: Mutex<Option<HashMap<usize, Weak<EntryToken>>>> = Mutex::new(None);

/// The token of `instance`, which P1 protects: the same token for every queue and type that the
/// instance serves.
pub(crate) fn token_of(instance: &Bound<'_, PyAny>) -> Arc<EntryToken> {
    let mut tokens = TOKENS.lock();
    let tokens = tokens.get_or_insert_with(HashMap::new);
    let address = instance.as_ptr() as usize;
    if let Some(token) = tokens.get(&address).and_then(Weak::upgrade) {
        return token;
    }
    tokens.retain(|_, token| token.strong_count() > 0);
    let token = Arc::new(EntryToken::default());
    tokens.insert(address, Arc::downgrade(&token));
    token
}

/// In a forked child: threads that do not exist here may hold the tokens.
pub(crate) fn forget_tokens() {
    std::mem::forget(TOKENS.lock().take());
}
