"""Frames: how the store's clients and server put lists of byte strings on a connection.

A frame is a 4-byte length, then that many bytes: each field as a 4-byte length and its bytes.
All numbers are big-endian. One request frame gets one answer frame.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from chaoslab.resilience.errors import StoreError

MAX_FRAME_BYTES = 16 * 1024 * 1024
"""Longest frame that is read; a longer one ends the connection."""

LENGTH = struct.Struct("!I")


def pack(fields: Sequence[bytes]) -> bytes:
    """Make one frame. Raises: StoreError for a frame that the other side would refuse."""
    body = b"".join(LENGTH.pack(len(field)) + field for field in fields)
    if len(body) > MAX_FRAME_BYTES:
        raise StoreError(
            f"frame of {len(body)} bytes: want at most {MAX_FRAME_BYTES}; "
            "put large values into a file and store its path"
        )
    return LENGTH.pack(len(body)) + body


def body_bytes(header: bytes) -> int:
    """Read the length of a frame's body. Raises: StoreError when it is over the limit."""
    size = int(LENGTH.unpack(header)[0])
    if size > MAX_FRAME_BYTES:
        raise StoreError(f"frame of {size} bytes: want at most {MAX_FRAME_BYTES}; is it the store?")
    return size


def unpack(body: bytes) -> list[bytes]:
    """Read the fields of a frame's body. Raises: StoreError for one that does not add up."""
    fields, at = [], 0
    while at < len(body):
        if at + LENGTH.size > len(body):
            raise StoreError(f"frame cut at byte {at} of {len(body)}: want a 4-byte length")
        size = int(LENGTH.unpack_from(body, at)[0])
        at += LENGTH.size
        if at + size > len(body):
            raise StoreError(f"field of {size} bytes at byte {at}: the frame has {len(body)}")
        fields.append(body[at : at + size])
        at += size
    return fields
