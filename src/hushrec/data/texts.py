"""Bytes of a file, decompressed, and its text as blocks of whole lines: all at once, or so many bytes at a time."""

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from hushrec.errors import DataError

GZIP_MAGIC = b"\x1f\x8b"


class Block(NamedTuple):
    """Some whole lines of UTF-8, ended by \\n but for the last."""

    data: bytes
    first_line: int

    @property
    def next_line(self) -> int:
        """The number of the line after the last."""
        return self.first_line + self.data.count(b"\n") + 1


def read_bytes(path: Path) -> bytes:
    """Return the file's bytes, decompressed if it is gzipped."""
    return b"".join(raw_blocks(path, None))


def raw_blocks(path: Path, at_once: int | None) -> Iterator[bytes]:
    """Yield the file's bytes, decompressed if it is gzipped; in one block unless `at_once` says how many at a time."""
    try:
        with path.open("rb") as file, _unzipped(file) as plain:
            while block := plain.read(-1 if at_once is None else at_once):
                yield block
    except IsADirectoryError:
        raise DataError(f"{path} is a directory; expected a file.") from None
    except EOFError:
        raise DataError(f"{path} is cut short: its gzip data ends early. Copy or download it again.") from None
    except (gzip.BadGzipFile, zlib.error):
        raise DataError(f"{path} is damaged: its gzip data does not decompress. Copy or download it again.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a valid file name"
        raise DataError(f"{path} cannot be read: {reason}.") from None


def _unzipped(file: io.BufferedReader) -> gzip.GzipFile | io.BufferedReader:
    return gzip.GzipFile(fileobj=file) if file.peek(2).startswith(GZIP_MAGIC) else file


def text_blocks(path: Path, raw: Iterator[bytes], encoding: str | None, *, whole: bool) -> Iterator[Block]:
    """Yield the file's text in UTF-8, lines ended by \\n, in one block if `whole`; refuse what is no text.

    A byte order mark and empty lines at the end are left out.
    """
    line = 1
    for data in _lines(_as_utf8(path, raw, encoding), whole=whole):
        _check_text(path, data, line)
        block = Block(data.removeprefix(b"\xef\xbb\xbf") if line == 1 else data, line)
        if line == 1 and not block.data.strip():
            break
        yield block
        line = block.next_line
    if line == 1:
        raise DataError(f"{path} is empty; expected one rating per line: user, item, rating.")


def _lines(blocks: Iterator[bytes], *, whole: bool) -> Iterator[bytes]:
    """Yield the same bytes in blocks of whole lines, without the end of the last."""
    held = b""
    for block in blocks:
        held += block
        if whole:
            continue
        text, rest = (held[:-1], b"\r") if held.endswith(b"\r") else (held, b"")  # \n may come with the next block
        text = _with_newlines(text)
        end = text.rstrip(b"\n").rfind(b"\n")  # empty lines are held back: they may be the last
        if end >= 0:
            yield text[:end]
        held = text[end + 1 :] + rest
    last = _with_newlines(held).rstrip(b"\n")
    if last:
        yield last


def _with_newlines(data: bytes) -> bytes:
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in data else data


def _as_utf8(path: Path, blocks: Iterator[bytes], encoding: str | None) -> Iterator[bytes]:
    """Yield the text in UTF-8, from the encoding given."""
    if encoding is None:
        yield from blocks
        return
    try:
        b" ".decode(encoding, "ignore")  # refuses what is not an encoding of text
        decoder = codecs.getincrementaldecoder(encoding)()
    except (LookupError, ValueError):
        raise DataError(
            f"encoding must be one that Python knows, such as utf-8, latin-1 or utf-16, got {encoding!r}."
        ) from None
    try:
        for block in chain(blocks, [b""]):
            yield decoder.decode(block, final=not block).encode("utf-8")
    except ValueError:
        raise DataError(f"{path} is not {encoding} text. Pass its own --encoding.") from None


def _check_text(path: Path, data: bytes, first_line: int) -> None:
    if first_line == 1 and data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path} is UTF-16 text; expected UTF-8. Pass --encoding utf-16, or save it as UTF-8.")
    if b"\x00" in data or (first_line == 1 and data.startswith(b"PK\x03\x04")):
        raise DataError(f"{path} is a binary file; expected CSV, TSV, `::` separated text or Parquet.")
    if data.isascii():
        return
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + first_line
        raise DataError(
            f"{path}, line {line}: expected UTF-8 text, found other bytes. Pass --encoding with the file's own, as in"
            " latin-1."
        ) from None


def skip_lines(path: Path, blocks: Iterator[Block], count: int) -> Iterator[Block]:
    """Yield the text below the first `count` lines."""
    for block in blocks:
        data, line = block
        while line <= count and b"\n" in data:
            data, line = data.partition(b"\n")[2], line + 1
        if line > count:
            yield Block(data, line)
            yield from blocks
            return
    raise DataError(f"{path} has no line after the {count} to skip. Lower --skip-rows.")
