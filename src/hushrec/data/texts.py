"""Readers of a file's decompressed bytes, and of its text in blocks of whole lines."""

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hushrec.errors import DataError

GZIP_MAGIC = b"\x1f\x8b"
BYTES_AT_ONCE = 1 << 25


class Block(NamedTuple):
    """Consecutive whole lines of UTF-8 text, separated by \\n."""

    data: bytes
    first_line: int


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, decompressed if it is gzipped."""
    return b"".join(raw_blocks(path))


def raw_blocks(path: Path, at_once: int = BYTES_AT_ONCE) -> Iterator[bytes]:
    """Yield the decompressed content of a file in blocks of `at_once` bytes."""
    try:
        with path.open("rb") as file, _unzipped(file) as plain:
            while block := plain.read(at_once):
                yield block
    except IsADirectoryError:
        raise DataError(f"{path} must be a file, but is a directory.") from None
    except EOFError:
        raise DataError(f"{path} is incomplete: its gzip data ends early. Copy or download it again.") from None
    except (gzip.BadGzipFile, zlib.error):
        raise DataError(f"{path} is damaged: its gzip data does not decompress. Copy or download it again.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a valid file name"
        raise DataError(f"{path} must be a readable file: {reason}.") from None


def _unzipped(file: io.BufferedReader) -> gzip.GzipFile | io.BufferedReader:
    return gzip.GzipFile(fileobj=file) if file.peek(2).startswith(GZIP_MAGIC) else file


def text_blocks(path: Path, raw: Iterator[bytes], encoding: str | None) -> Iterator[Block]:
    """Yield a file's text in UTF-8, in blocks of whole lines that are separated by \\n.

    `raw` is the decompressed content of the file, in blocks of any size. Raise `DataError` if the file is not text. A
    byte order mark and empty lines at the end of the file are left out.
    """
    line = 1
    for data in _lines(_as_utf8(path, raw, encoding)):
        _check_text(path, data, line)
        content = data.removeprefix(b"\xef\xbb\xbf") if line == 1 else data
        yield Block(content, line)
        line += content.count(b"\n") + 1


def _lines(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield text in blocks of whole lines, without the empty lines at the end of the file."""
    held = b""
    for block in blocks:
        held += block
        text, rest = (held[:-1], b"\r") if held.endswith(b"\r") else (held, b"")  # \n may begin the next block
        text = _with_newlines(text)
        end = text.rstrip(b"\n").rfind(b"\n")  # empty lines are held back, because they may be at the end of the file
        if end >= 0:
            yield text[:end]
        held = text[end + 1 :] + rest
    last = _with_newlines(held).rstrip(b"\n")
    if last:
        yield last


def _with_newlines(data: bytes) -> bytes:
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in data else data


def _as_utf8(path: Path, blocks: Iterator[bytes], encoding: str | None) -> Iterator[bytes]:
    """Yield text converted from `encoding` to UTF-8; unchanged and unchecked if `encoding` is None."""
    if encoding is None:
        yield from blocks
        return
    try:
        b" ".decode(encoding, "ignore")  # raises if it is not an encoding of text
        codecs.getincrementaldecoder(encoding)
    except (LookupError, ValueError):
        raise DataError(
            f"encoding must be one that Python knows, such as utf-8, latin-1 or utf-16, got {encoding!r}."
        ) from None
    try:
        for text in codecs.iterdecode(blocks, encoding):
            yield text.encode("utf-8")
    except ValueError:
        raise DataError(f"{path} must be {encoding} text, but is not. Pass the right --encoding.") from None


def _check_text(path: Path, data: bytes, first_line: int) -> None:
    if first_line == 1 and data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path} must be UTF-8 text, but is UTF-16. Pass --encoding utf-16, or save it as UTF-8.")
    if b"\x00" in data or (first_line == 1 and data.startswith(b"PK\x03\x04")):
        raise DataError(
            f"{path} must be CSV, TSV, `::` separated text or Parquet, but is another binary file. Save it as CSV."
        )
    if data.isascii():
        return
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + first_line
        raise DataError(
            f"{path}, line {line}: expected UTF-8 text, found other bytes. Pass the file's --encoding, for example"
            " latin-1."
        ) from None


def skip_lines(path: Path, blocks: Iterator[Block], count: int) -> Iterator[Block]:
    """Yield the blocks of a text without its first `count` lines, and without the empty lines that follow these.

    Raise `DataError` if no line remains.
    """
    for block in blocks:
        data, line = block
        while line <= count and b"\n" in data:
            data, line = data.partition(b"\n")[2], line + 1
        filled = data.lstrip(b"\n")
        if line > count and filled.strip(b" \n"):
            yield Block(filled, line + len(data) - len(filled))
            yield from blocks
            return
    if count == 0:
        raise DataError(f"{path} must have at least one row, but is empty.")
    raise DataError(f"skip_rows must be less than the number of lines of {path}, got {count}.")
