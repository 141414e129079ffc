//! The replies to `XREAD`, however they arrive.

use proptest::collection::vec;
use proptest::prelude::*;

use super::block::{Entries, HEADER};
use super::reader::{FoundStream, Reply, ReplyError, ReplyReader};

/// An entry: milliseconds since the one before, its fields.
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

/// A reply as a server writes it.
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
    assert_eq!(entry_with(&[(b"v", b"abc")]).only_value(0), Some(&b"abc"[..]));
    assert_eq!(entry_with(&[(b"v", b"abc"), (b"k", b"d")]).only_value(0), None);
    assert_eq!(entry_with(&[(b"w", b"abc")]).only_value(0), None);
    assert_eq!(entry_with(&[]).only_value(0), None);
}

#[test]
fn slices_have_their_own_places() {
    let entries = (1..=4).map(|at| (1, vec![(b"v".to_vec(), vec![at])])).collect();
    let entries = found(&encode(&[(b"s".to_vec(), entries)])).remove(0).entries;
    let later = entries.slice(1..4).slice(1..3);
    assert_eq!((later.len(), later.offset(0), later.offset(1)), (2, 3, 4));
    assert_eq!((later.find(2), later.find(3), later.find(4)), (None, Some(0), Some(1)));
    assert_eq!(later.only_value(1), Some(&[4][..]));
}

#[test]
fn an_offset_holds_the_milliseconds_of_its_id() {
    let entries = found(&encode(&[(b"s".to_vec(), vec![((1760 << 20) + 9, vec![])])])).remove(0);
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
        let reply = format!("*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n${}\r\n{id}\r\n*0\r\n", id.len());
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
