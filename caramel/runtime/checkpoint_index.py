"""The index file of a checkpoint: how many data files does it say there are?

It is a table of LevelDB: blocks of entries, each followed by a byte for the compression and a
checksum, and at its end where the block is that lists the others. The first entry of the first
block has an empty key, and a `BundleHeaderProto` as value, whose first field is the number of data
files: two zero bytes, the length of the value, a tag, the number.
"""

from __future__ import annotations

from functools import cache

_FOOTER_BYTES = 48
_NUMBER_AT = 4
MOST_FILES = 127  # of an index whose number can be changed in place


def data_files(index: bytes) -> int | None:
    """The number of data files that an index refers to; None if it is none that is known."""
    if len(index) <= _FOOTER_BYTES or index[:2] != bytes(2) or index[3] != 0x08:
        return None
    return _varint(index, _NUMBER_AT)[0] or None


def with_data_files(index: bytes, number: int) -> bytes:
    """The same index, which says that there are `number` data files, at most `MOST_FILES`.

    Its entries are as they were, so those that it did not have before are never read.
    """
    assert number <= MOST_FILES, "it must fit into the byte that is there"
    _, at = _varint(index, len(index) - _FOOTER_BYTES)  # the place of other blocks, not used
    _, at = _varint(index, at)
    listing, _ = _varint(index, at)
    _, at = _varint(index, listing)
    key_bytes, at = _varint(index, at)
    _, at = _varint(index, at)
    begin, at = _varint(index, at + key_bytes)
    length, _ = _varint(index, at)
    assert begin == 0, "the first block comes first"
    block = index[:_NUMBER_AT] + bytes([number]) + index[_NUMBER_AT + 1 : length + 1]
    return block + _masked(_crc32c(block)).to_bytes(4, "little") + index[length + 5 :]


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits in each byte, the lowest first, and where it ends."""
    number = shift = 0
    while at < len(content):
        byte = content[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    return number, at


def _crc32c(content: bytes) -> int:
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in content:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


@cache
def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


def _masked(crc: int) -> int:
    """A checksum as LevelDB writes it."""
    return (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF
