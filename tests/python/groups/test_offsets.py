"""Offsets of Redis streams: ids and ints turn into each other, and sort in the same order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchqueue.groups.errors import OffsetError
from batchqueue.groups.record import MAX_MILLISECONDS, MAX_OFFSET, MAX_SEQUENCE, format_id, parse_id

POSITIONS = st.tuples(st.integers(0, MAX_MILLISECONDS), st.integers(0, MAX_SEQUENCE))


def written(position):
    return f"{position[0]}-{position[1]}"


@given(position=POSITIONS)
def test_id_comes_back_from_its_offset(position):
    text = written(position)
    assert format_id(parse_id(text)) == text
    assert parse_id(text.encode()) == parse_id(text)


@given(offset=st.integers(0, MAX_OFFSET))
def test_offset_comes_back_from_its_id(offset):
    assert parse_id(format_id(offset)) == offset


@given(first=POSITIONS, second=POSITIONS)
def test_offsets_have_the_order_of_their_ids(first, second):
    assert (first < second) == (parse_id(written(first)) < parse_id(written(second)))


@given(position=POSITIONS)
def test_offset_fits_into_a_signed_int_of_64_bits(position):
    assert 0 <= parse_id(written(position)) < 2**63


def test_bounds_are_exact():
    assert parse_id("0-0") == 0
    assert parse_id("0-1") == 1
    assert parse_id("1-0") == 2**20
    assert parse_id(f"{2**43 - 1}-{2**20 - 1}") == MAX_OFFSET == 2**63 - 1


@pytest.mark.parametrize("sequence", [2**20, 2**20 + 1, 2**64 - 1])
def test_sequence_number_above_the_limit_is_rejected_with_its_remedy(sequence):
    with pytest.raises(OffsetError) as raised:
        parse_id(f"5-{sequence}")
    assert str(raised.value) == (
        f"record id '5-{sequence}' has the sequence number {sequence}, and the largest is 1048575; "
        "let Redis make the ids, and check whether the clock of its host was set back"
    )
    assert raised.value.value == f"5-{sequence}"


@pytest.mark.parametrize("milliseconds", [2**43, 2**64 - 1])
def test_milliseconds_above_the_limit_are_rejected_with_their_remedy(milliseconds):
    with pytest.raises(OffsetError, match=rf"{milliseconds} ms, and the most is 8796093022207; "):
        parse_id(f"{milliseconds}-0")


@pytest.mark.parametrize(
    "text",
    [
        *("", "-", "5", "5-", "-5", "5-5-5", "+5-0", "5--1", "-5-1", " 5-0", "5-0\n", "5_0-0"),
        *("0x5-0", "5.0-0", "$", "*", "\u0665-0", "\u00b2-0", "\ud800-0", "9" * 5_000 + "-0"),
    ],
)
def test_text_that_redis_does_not_write_is_rejected(text):
    with pytest.raises(OffsetError, match=r"is not of the form ms-seq; give one such as 176"):
        parse_id(text)
    with pytest.raises(OffsetError, match=r"is not of the form ms-seq"):
        parse_id(text.encode("utf-8", "surrogatepass"))


def test_message_about_a_long_id_is_short():
    with pytest.raises(OffsetError) as raised:
        parse_id(b"9" * 100_000)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize("offset", [-1, MAX_OFFSET + 1])
def test_offset_without_an_id_is_rejected(offset):
    with pytest.raises(OffsetError, match=rf"^offset {offset} is not an id of Redis; give an int"):
        format_id(offset)
