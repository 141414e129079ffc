//! Records of Redis streams, from the bytes of a reply to Python objects.
//!
//! A client library turns a reply into Python objects, at least five per entry, and the record made
//! from them later takes as many again. Here the replies to `XREAD` are scanned as they arrive, and
//! an entry becomes a Python object once, when a drain thread decodes it. All other traffic with
//! Redis is left to the client library.

use std::mem;
use std::ops::Range;
use std::sync::Arc;

// `Entries`: entries of one stream, in the bytes in which they arrived.

/// Bits of an offset that hold the sequence number of an id.
const SEQUENCE_BITS: u32 = 20;

const MAX_SEQUENCE: u64 = (1 << SEQUENCE_BITS) - 1;

const MAX_MILLISECONDS: u64 = (1 << 43) - 1;

/// The prefix of a field that holds a header.
const HEADER: &[u8] = b"h:";

/// The position of an entry.
#[derive(Clone, Debug)]
struct Span {
    /// The id as one number: see `offset_of`.
    offset: u64,
    /// The number of names and values of the fields, which is even.
    fields: usize,
    /// The start of the first field.
    start: usize,
    /// The value of the field `v`, if there is one.
    value: Option<Range<usize>>,
}

/// Entries of one stream, by ascending id. Slices share the bytes.
#[derive(Clone, Debug)]
pub(crate) struct Entries {
    data: Arc<[u8]>,
    spans: Arc<[Span]>,
    range: Range<usize>,
}

/// The contents of an entry.
#[derive(Debug, PartialEq)]
pub(crate) struct Parts<'a> {
    /// The field `v`; empty if there is none.
    pub(crate) value: &'a [u8],
    /// The field `k`.
    pub(crate) key: Option<&'a [u8]>,
    /// All other fields, without the prefix of headers.
    pub(crate) headers: Vec<(&'a [u8], &'a [u8])>,
}

impl Entries {
    fn new(data: &[u8], spans: Vec<Span>) -> Self {
        let range = 0..spans.len();
        Self { data: data.into(), spans: spans.into(), range }
    }

    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }

    /// Returns the entries at these places, which must be within this block.
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

    /// Returns the place of the entry with this offset.
    pub(crate) fn find(&self, offset: u64) -> Option<usize> {
        self.spans[self.range.clone()].binary_search_by_key(&offset, |span| span.offset).ok()
    }

    /// Returns the field `v`; empty if there is none.
    pub(crate) fn value(&self, place: usize) -> &[u8] {
        self.span(place).value.clone().map_or(&[][..], |range| &self.data[range])
    }

    /// Returns whether an entry has a value and nothing else.
    pub(crate) fn has_only_a_value(&self, place: usize) -> bool {
        let span = self.span(place);
        span.value.is_some() && span.fields == 2
    }

    /// Returns all parts of an entry.
    pub(crate) fn parts(&self, place: usize) -> Parts<'_> {
        let span = self.span(place);
        let mut parts = Parts { value: self.value(place), key: None, headers: Vec::new() };
        let mut has_value = false;
        let mut cursor = Cursor::new(&self.data, span.start);
        for _ in 0..span.fields / 2 {
            // The scan has found all of them, so none is missing.
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

/// Returns the offset of an id `milliseconds-sequence`, or `None` if it is invalid or does not fit.
fn offset_of(id: &[u8]) -> Option<u64> {
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

// `ReplyReader`: finds the entries in the replies to `XREAD` as they arrive.
//
// A reply is nil, an error, or an array of streams (protocol 2):
//
// ```text
// *streams  of  *2 $key *entries  of  *2 $id *fields  of  $name $value, alternating
// ```
//
// A status is the reply to `ASKING`, which precedes `XREAD` in a cluster: it has no streams.
//
// The head of a reply, the head of a stream, and an entry are each scanned as a whole, again from
// the start if a part had not arrived. That costs little, because a value is skipped by its length.

/// The most streams or entries to reserve memory for, however many a reply announces.
const MOST_RESERVED: usize = 16_384;

/// A reply to `XREAD`.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The streams that have entries.
    Found(Vec<FoundStream>),
    /// The server's error message, which begins with a word for its kind.
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

/// The reason a reply cannot be used.
#[derive(Debug, PartialEq)]
pub(crate) enum ReplyError {
    /// The bytes are not a reply to `XREAD`.
    Malformed(&'static str),
    /// The id of an entry does not fit into an offset.
    Id(String),
}

/// The reason a scan stops.
#[derive(Debug, PartialEq)]
enum Stop {
    /// The rest has not arrived.
    Incomplete,
    Invalid(ReplyError),
}

/// A scanner for the replies to commands that were sent together.
pub(crate) struct ReplyReader {
    /// The bytes that have arrived, without those of complete streams.
    data: Vec<u8>,
    /// The end of the scanned part.
    at: usize,
    next: Next,
    streams: Vec<FoundStream>,
    replies: Vec<Reply>,
    expected: usize,
}

/// The part of a reply that comes next.
enum Next {
    Reply,
    Stream { left: usize },
    Entry { left: usize, stream: OpenStream, streams_left: usize },
}

/// A stream whose entries are arriving.
struct OpenStream {
    key: Vec<u8>,
    /// The start of its entries.
    start: usize,
    spans: Vec<Span>,
    size: usize,
}

impl ReplyReader {
    /// Creates a reader that expects this number of replies.
    pub(crate) fn new(expected: usize) -> Self {
        let (data, streams, replies) = Default::default();
        Self { data, at: 0, next: Next::Reply, streams, replies, expected }
    }

    /// Takes newly arrived bytes, and returns whether all replies are complete.
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

    /// Takes the replies so far, in the order of the commands.
    pub(crate) fn take(&mut self) -> Vec<Reply> {
        mem::take(&mut self.replies)
    }

    /// Scans the next part.
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

/// A position in a reply.
struct Cursor<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn new(data: &'a [u8], at: usize) -> Self {
        Self { data, at }
    }

    /// Reads the next string, and returns its place.
    fn bulk(&mut self) -> Result<Range<usize>, Stop> {
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

    /// Reads the head of a pair and its first element, a string.
    fn pair(&mut self) -> Result<Range<usize>, Stop> {
        if self.number(b'*')? != Some(2) {
            return Err(malformed("a pair is missing"));
        }
        self.bulk()
    }

    /// Reads the length of an array or a string; `None` for nil.
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

    /// Reads the next line, without its end.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::{Entries, FoundStream, HEADER, Reply, ReplyError, ReplyReader};

    // The replies to `XREAD`, however they arrive.

    /// The names and values of an entry's fields.
    type Fields = Vec<(Vec<u8>, Vec<u8>)>;

    type Stream = (Vec<u8>, Vec<(u64, Fields)>);

    fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
        out.extend(format!("${}\r\n", bytes.len()).bytes());
        out.extend(bytes);
        out.extend(b"\r\n");
    }

    fn array(out: &mut Vec<u8>, length: usize) {
        out.extend(format!("*{length}\r\n").bytes());
    }

    /// Encodes a reply as a server does.
    fn encode(streams: &[Stream]) -> Vec<u8> {
        let mut out = Vec::new();
        if streams.is_empty() {
            return b"*-1\r\n".to_vec();
        }
        array(&mut out, streams.len());
        for (key, entries) in streams {
            array(&mut out, 2);
            bulk(&mut out, key);
            array(&mut out, entries.len());
            let mut id = 0;
            for (later, fields) in entries {
                id += later;
                array(&mut out, 2);
                bulk(&mut out, format!("{}-{}", id >> 20, id & 0xf_ffff).as_bytes());
                array(&mut out, 2 * fields.len());
                for (name, value) in fields {
                    bulk(&mut out, name);
                    bulk(&mut out, value);
                }
            }
        }
        out
    }

    fn read(bytes: &[u8], expected: usize) -> Result<Vec<Reply>, ReplyError> {
        let mut reader = ReplyReader::new(expected);
        assert!(reader.feed(bytes)?, "the reply is not complete");
        Ok(reader.take())
    }

    fn found(bytes: &[u8]) -> Vec<FoundStream> {
        match read(bytes, 1).unwrap().pop() {
            Some(Reply::Found(streams)) => streams,
            other => panic!("{other:?}"),
        }
    }

    fn entry_with(fields: &[(&[u8], &[u8])]) -> Entries {
        let fields = fields.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        found(&encode(&[(b"s".to_vec(), vec![(7, fields)])])).remove(0).entries
    }

    fn streams() -> impl Strategy<Value = Vec<Stream>> {
        let bytes = || vec(any::<u8>(), 0..8);
        let name = prop_oneof![
            Just(b"v".to_vec()),
            Just(b"k".to_vec()),
            bytes().prop_map(|name| [HEADER, &name].concat()),
            bytes(),
        ];
        let entry = (1..1_u64 << 40, vec((name, bytes()), 0..4));
        vec((bytes(), vec(entry, 1..4)), 0..4)
    }

    proptest! {
        #[test]
        fn replies_are_found_however_they_are_cut(
            sent in vec(streams(), 1..4), cuts in vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let bytes = sent.iter().flat_map(|streams| encode(streams)).collect::<Vec<_>>();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
            cuts.sort_unstable();
            let mut reader = ReplyReader::new(sent.len());
            let mut begin = 0;
            for cut in cuts {
                prop_assert!(!reader.feed(&bytes[begin..cut]).unwrap());
                begin = cut;
            }
            prop_assert!(reader.feed(&bytes[begin..]).unwrap());
            let replies = reader.take();
            prop_assert_eq!(replies.len(), sent.len());
            for (reply, streams) in replies.iter().zip(&sent) {
                let Reply::Found(found) = reply else { panic!("{reply:?}") };
                prop_assert_eq!(found.len(), streams.len());
                for (found, (key, entries)) in found.iter().zip(streams) {
                    prop_assert_eq!(&found.key, key);
                    prop_assert_eq!(found.entries.len(), entries.len());
                    let (mut offset, mut size) = (0, 0);
                    for (place, (later, fields)) in entries.iter().enumerate() {
                        offset += later;
                        prop_assert_eq!(found.entries.offset(place), offset);
                        prop_assert_eq!(found.entries.find(offset), Some(place));
                        size += check_parts(&found.entries, place, fields);
                    }
                    prop_assert_eq!(found.size, size);
                }
            }
        }
    }

    /// Compares an entry with its fields, and returns its size.
    fn check_parts(entries: &Entries, place: usize, fields: &Fields) -> usize {
        let first = |wanted: &[u8]| fields.iter().position(|(name, _)| name == wanted);
        let (value, key) = (first(b"v"), first(b"k"));
        let others = fields.iter().enumerate();
        let others = others.filter(|(at, _)| Some(*at) != value && Some(*at) != key);
        let mut size = fields.iter().map(|(_, value)| value.len()).sum();
        let parts = entries.parts(place);
        assert_eq!(parts.value, value.map_or(&[][..], |at| &fields[at].1));
        assert_eq!(parts.key, key.map(|at| &fields[at].1[..]));
        let mut headers = parts.headers.iter();
        for (_, (name, value)) in others {
            let bare = name.strip_prefix(HEADER).unwrap_or(name);
            assert_eq!(headers.next(), Some(&(bare, &value[..])));
            size += if name.len() > bare.len() { bare.len() } else { 0 };
        }
        assert_eq!(headers.next(), None);
        size
    }

    #[test]
    fn an_entry_with_nothing_but_a_value_is_recognised() {
        assert!(entry_with(&[(b"v", b"abc")]).has_only_a_value(0));
        assert!(!entry_with(&[(b"v", b"abc"), (b"k", b"d")]).has_only_a_value(0));
        assert!(!entry_with(&[(b"w", b"abc")]).has_only_a_value(0));
        assert!(!entry_with(&[]).has_only_a_value(0));
    }

    #[test]
    fn slices_have_their_own_places() {
        let entries = (1..=4).map(|at| (1, vec![(b"v".to_vec(), vec![at])])).collect();
        let entries = found(&encode(&[(b"s".to_vec(), entries)])).remove(0).entries;
        let later = entries.slice(1..4).slice(1..3);
        assert_eq!((later.len(), later.offset(0), later.offset(1)), (2, 3, 4));
        assert_eq!((later.find(2), later.find(3), later.find(4)), (None, Some(0), Some(1)));
        assert_eq!(later.value(1), [4]);
    }

    #[test]
    fn an_offset_holds_the_milliseconds_of_its_id() {
        let entries =
            found(&encode(&[(b"s".to_vec(), vec![((1760 << 20) + 9, vec![])])])).remove(0);
        assert_eq!(entries.entries.milliseconds(0), 1760);
        assert_eq!(entries.entries.offset(0) - (1760 << 20), 9);
    }

    #[test]
    fn a_refusal_is_one_reply_among_others() {
        let bytes = [&b"+OK\r\n-LOADING wait\r\n"[..], &encode(&[])].concat();
        match &read(&bytes, 3).unwrap()[..] {
            [Reply::Found(first), Reply::Refused(text), Reply::Found(last)] => {
                assert_eq!(text, "LOADING wait");
                assert!(first.is_empty() && last.is_empty());
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_id_that_does_not_fit_into_an_offset_is_named() {
        for id in ["1-1048576", "8796093022208-0", "1", "-", "1-x", "18446744073709551616-0"] {
            let reply =
                format!("*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n${}\r\n{id}\r\n*0\r\n", id.len());
            let error = read(reply.as_bytes(), 1).unwrap_err();
            assert_eq!(error, ReplyError::Id(id.to_owned()));
        }
    }

    #[test]
    fn what_is_not_a_reply_to_xread_is_refused() {
        for bytes in [
            ":1\r\n",
            "*1\r\n$1\r\ns\r\n",
            "*x\r\n",
            "*1\r\r",
            "*1\r\n*3\r\n",
            "*1\r\n*2\r\n$-1\r\n",
            "*1\r\n*2\r\n$1\r\nsss",
            "*1\r\n*2\r\n$18446744073709551615\r\n",
            "*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n1-1\r\n*1\r\n",
            "*-1\r\n*-1\r\n",
        ] {
            let error = read(bytes.as_bytes(), 1).unwrap_err();
            assert!(matches!(error, ReplyError::Malformed(_)), "{bytes:?}: {error:?}");
        }
    }
}
