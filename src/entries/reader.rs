//! `ReplyReader`: finds the entries in the replies to `XREAD`, while they arrive.
//!
//! A reply is nil, an error, or an array of streams (protocol 2):
//!
//! ```text
//! *streams  of  *2 $key *entries  of  *2 $id *fields  of  $name $value by turns
//! ```
//!
//! A status is the reply to `ASKING`, which precedes `XREAD` in a cluster: it has no streams.
//!
//! The head of a reply, the head of a stream, and an entry are each scanned as a whole: again from
//! the start, if it was not all there. That costs little, since a value is skipped by its length.

use std::mem;
use std::ops::Range;

use super::block::{Entries, HEADER, Span, offset_of};

/// Streams or entries to reserve memory for, whatever number a reply announces.
const MOST_RESERVED: usize = 16_384;

/// A reply to `XREAD`.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The streams that have entries.
    Found(Vec<FoundStream>),
    /// What the server says is wrong, beginning with a word for its kind.
    Refused(String),
}

/// Entries that were found in a stream.
#[derive(Debug)]
pub(crate) struct FoundStream {
    pub(crate) key: Vec<u8>,
    pub(crate) entries: Entries,
    /// The bytes of their values, keys and headers.
    pub(crate) size: usize,
}

/// Why a reply cannot be used.
#[derive(Debug, PartialEq)]
pub(crate) enum ReplyError {
    /// It is not a reply to `XREAD`.
    Malformed(&'static str),
    /// The id of an entry does not fit into an offset.
    Id(String),
}

/// Why a scan stops.
#[derive(Debug, PartialEq)]
pub(super) enum Stop {
    /// The rest has not arrived.
    Incomplete,
    Invalid(ReplyError),
}

/// The scan of the replies to commands that were sent together.
pub(crate) struct ReplyReader {
    /// What has arrived, without the streams that are complete.
    data: Vec<u8>,
    /// Up to where it is scanned.
    at: usize,
    next: Next,
    streams: Vec<FoundStream>,
    replies: Vec<Reply>,
    expected: usize,
}

/// What comes next.
enum Next {
    Reply,
    Stream { left: usize },
    Entry { left: usize, stream: OpenStream, streams_left: usize },
}

/// A stream whose entries are arriving.
struct OpenStream {
    key: Vec<u8>,
    /// Where its entries begin.
    start: usize,
    spans: Vec<Span>,
    size: usize,
}

impl ReplyReader {
    /// Expects this number of replies.
    pub(crate) fn new(expected: usize) -> Self {
        Self {
            data: Vec::new(),
            at: 0,
            next: Next::Reply,
            streams: Vec::new(),
            replies: Vec::new(),
            expected,
        }
    }

    /// Takes bytes that have arrived, and returns whether all replies are there.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<bool, ReplyError> {
        self.data.extend_from_slice(bytes);
        while self.replies.len() < self.expected {
            match self.step() {
                Ok(()) => {}
                Err(Stop::Incomplete) => return Ok(false),
                Err(Stop::Invalid(error)) => return Err(error),
            }
        }
        if self.at < self.data.len() {
            return Err(ReplyError::Malformed("more follows the last reply"));
        }
        Ok(true)
    }

    /// The replies so far, in the order of the commands.
    pub(crate) fn take(&mut self) -> Vec<Reply> {
        mem::take(&mut self.replies)
    }

    /// Scans one part.
    fn step(&mut self) -> Result<(), Stop> {
        let mut cursor = Cursor::new(&self.data, self.at);
        match &mut self.next {
            Next::Reply => {
                match self.data.get(self.at) {
                    Some(b'-') => {
                        let text = String::from_utf8_lossy(&cursor.line()?[1..]).into_owned();
                        self.replies.push(Reply::Refused(text));
                    }
                    Some(b'+') => {
                        cursor.line()?;
                        self.replies.push(Reply::Found(Vec::new()));
                    }
                    _ => self.next = Next::Stream { left: cursor.number(b'*')?.unwrap_or(0) },
                }
                self.at = cursor.at;
            }
            Next::Stream { left: 0 } => {
                self.replies.push(Reply::Found(mem::take(&mut self.streams)));
                self.next = Next::Reply;
            }
            Next::Stream { left } => {
                let key = cursor.pair()?;
                let entries = cursor.number(b'*')?.unwrap_or(0);
                let stream = OpenStream {
                    key: self.data[key].to_vec(),
                    start: cursor.at,
                    spans: Vec::with_capacity(entries.min(MOST_RESERVED)),
                    size: 0,
                };
                self.at = cursor.at;
                self.next = Next::Entry { left: entries, stream, streams_left: *left - 1 };
            }
            Next::Entry { left: 0, stream, streams_left } => {
                let next = Next::Stream { left: *streams_left };
                let spans = mem::take(&mut stream.spans);
                if !spans.is_empty() {
                    self.streams.push(FoundStream {
                        key: mem::take(&mut stream.key),
                        entries: Entries::new(&self.data[stream.start..self.at], spans),
                        size: stream.size,
                    });
                }
                self.data.drain(..self.at);
                self.at = 0;
                self.next = next;
            }
            Next::Entry { left, stream, .. } => {
                stream.entry(&mut cursor)?;
                *left -= 1;
                self.at = cursor.at;
            }
        }
        Ok(())
    }
}

impl OpenStream {
    /// Scans an entry.
    fn entry(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Stop> {
        let id = cursor.pair()?;
        let fields = cursor.number(b'*')?.unwrap_or(0);
        if fields % 2 == 1 {
            return Err(malformed("a field has no value"));
        }
        let data = cursor.data;
        let (start, mut value, mut size) = (cursor.at, None, 0);
        for _ in 0..fields / 2 {
            let (name, range) = (cursor.bulk()?, cursor.bulk()?);
            let name = &data[name];
            size += range.len();
            if name == b"v" && value.is_none() {
                value = Some(range.start - self.start..range.end - self.start);
            } else if name.starts_with(HEADER) {
                size += name.len() - HEADER.len();
            }
        }
        let id = &data[id];
        let Some(offset) = offset_of(id) else {
            let id = String::from_utf8_lossy(id).into_owned();
            return Err(Stop::Invalid(ReplyError::Id(id)));
        };
        self.spans.push(Span { offset, fields, start: start - self.start, value });
        self.size += size;
        Ok(())
    }
}

/// A place in a reply.
pub(super) struct Cursor<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(data: &'a [u8], at: usize) -> Self {
        Self { data, at }
    }

    /// The place of the next string.
    pub(super) fn bulk(&mut self) -> Result<Range<usize>, Stop> {
        let length = self.number(b'$')?.ok_or_else(|| malformed("a string is missing"))?;
        let start = self.at;
        let end = start.checked_add(length).ok_or_else(|| malformed("a string is too long"))?;
        match self.data.get(end..end.saturating_add(2)) {
            Some(b"\r\n") => {
                self.at = end + 2;
                Ok(start..end)
            }
            Some(_) => Err(malformed("a string is longer than its length")),
            None => Err(Stop::Incomplete),
        }
    }

    /// The first of a pair, which is a string.
    fn pair(&mut self) -> Result<Range<usize>, Stop> {
        if self.number(b'*')? != Some(2) {
            return Err(malformed("a pair is missing"));
        }
        self.bulk()
    }

    /// The length of an array or a string; `None` for nil.
    fn number(&mut self, kind: u8) -> Result<Option<usize>, Stop> {
        let mut cursor = Cursor::new(self.data, self.at);
        if cursor.byte()? != kind {
            return Err(malformed("a reply has another type"));
        }
        let mut length = 0_usize;
        let mut byte = cursor.byte()?;
        let is_nil = byte == b'-';
        if is_nil {
            byte = cursor.byte()?;
        }
        while byte.is_ascii_digit() {
            let longer = length.checked_mul(10).and_then(|ten| ten.checked_add(digit(byte)));
            length = longer.ok_or_else(|| malformed("a length is too large"))?;
            byte = cursor.byte()?;
        }
        if byte != b'\r' || cursor.byte()? != b'\n' {
            return Err(malformed("a length does not end"));
        }
        self.at = cursor.at;
        Ok((!is_nil).then_some(length))
    }

    fn byte(&mut self) -> Result<u8, Stop> {
        let byte = *self.data.get(self.at).ok_or(Stop::Incomplete)?;
        self.at += 1;
        Ok(byte)
    }

    /// The next line, without its end.
    fn line(&mut self) -> Result<&'a [u8], Stop> {
        let rest = &self.data[self.at..];
        let end = rest.windows(2).position(|two| two == b"\r\n").ok_or(Stop::Incomplete)?;
        self.at += end + 2;
        Ok(&rest[..end])
    }
}

fn digit(byte: u8) -> usize {
    usize::from(byte - b'0')
}

fn malformed(problem: &'static str) -> Stop {
    Stop::Invalid(ReplyError::Malformed(problem))
}
