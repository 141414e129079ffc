//! `Entries`: entries of one stream, in the bytes in which they arrived.

use std::ops::Range;
use std::sync::Arc;

use super::reader::Cursor;

/// Bits of an offset that hold the sequence number of an id.
const SEQUENCE_BITS: u32 = 20;
const MAX_SEQUENCE: u64 = (1 << SEQUENCE_BITS) - 1;
const MAX_MILLISECONDS: u64 = (1 << 43) - 1;

/// The prefix of a field that holds a header.
pub(super) const HEADER: &[u8] = b"h:";

/// Where an entry is.
#[derive(Clone, Debug)]
pub(super) struct Span {
    /// Its id as one number: see `offset_of`.
    pub(super) offset: u64,
    /// Names and values of its fields.
    pub(super) fields: usize,
    /// Where the first of them begins.
    pub(super) start: usize,
    /// The value of the field `v`, if it has one.
    pub(super) value: Option<Range<usize>>,
}

/// Entries of one stream, by ascending id. Slices share the bytes.
#[derive(Clone, Debug)]
pub(crate) struct Entries {
    data: Arc<[u8]>,
    spans: Arc<[Span]>,
    range: Range<usize>,
}

/// What an entry holds.
#[derive(Debug, PartialEq)]
pub(crate) struct Parts<'a> {
    /// The field `v`; empty without one.
    pub(crate) value: &'a [u8],
    /// The field `k`.
    pub(crate) key: Option<&'a [u8]>,
    /// All other fields, without the prefix of headers.
    pub(crate) headers: Vec<(&'a [u8], &'a [u8])>,
}

impl Entries {
    pub(super) fn new(data: &[u8], spans: Vec<Span>) -> Self {
        let range = 0..spans.len();
        Self { data: data.into(), spans: spans.into(), range }
    }

    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }

    /// The entries at these places, which must be within this block.
    pub(crate) fn slice(&self, places: Range<usize>) -> Self {
        debug_assert!(places.start <= places.end && places.end <= self.len());
        let begin = self.range.start;
        Self {
            data: Arc::clone(&self.data),
            spans: Arc::clone(&self.spans),
            range: begin + places.start..begin + places.end,
        }
    }

    pub(crate) fn offset(&self, place: usize) -> u64 {
        self.span(place).offset
    }

    pub(crate) fn milliseconds(&self, place: usize) -> u64 {
        self.span(place).offset >> SEQUENCE_BITS
    }

    /// The place of the entry with this offset.
    pub(crate) fn find(&self, offset: u64) -> Option<usize> {
        self.spans[self.range.clone()].binary_search_by_key(&offset, |span| span.offset).ok()
    }

    /// The value of an entry that has nothing else.
    pub(crate) fn only_value(&self, place: usize) -> Option<&[u8]> {
        let span = self.span(place);
        let value = span.value.clone().filter(|_| span.fields == 2)?;
        Some(&self.data[value])
    }

    /// All that an entry holds.
    pub(crate) fn parts(&self, place: usize) -> Parts<'_> {
        let span = self.span(place);
        let value = span.value.clone().map_or(&[][..], |range| &self.data[range]);
        let mut parts = Parts { value, key: None, headers: Vec::new() };
        let mut has_value = false;
        let mut cursor = Cursor::new(&self.data, span.start);
        for _ in 0..span.fields / 2 {
            // They were scanned before, so all of them are there.
            let (Ok(name), Ok(data)) = (cursor.bulk(), cursor.bulk()) else { break };
            let (name, data) = (&self.data[name], &self.data[data]);
            match name {
                b"v" if !has_value => has_value = true,
                b"k" if parts.key.is_none() => parts.key = Some(data),
                _ => parts.headers.push((name.strip_prefix(HEADER).unwrap_or(name), data)),
            }
        }
        parts
    }

    fn span(&self, place: usize) -> &Span {
        &self.spans[self.range.start + place]
    }
}

/// The offset of an id `milliseconds-sequence`; `None` if it is invalid, or does not fit.
pub(super) fn offset_of(id: &[u8]) -> Option<u64> {
    let dash = id.iter().position(|byte| *byte == b'-')?;
    let (milliseconds, sequence) = (decimal(&id[..dash])?, decimal(&id[dash + 1..])?);
    (milliseconds <= MAX_MILLISECONDS && sequence <= MAX_SEQUENCE)
        .then_some((milliseconds << SEQUENCE_BITS) | sequence)
}

fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}
