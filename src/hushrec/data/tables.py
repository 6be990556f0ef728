"""Reads a delimited text file or a Parquet file into columns of text, or says where it is broken.

The fast way (polars) only ever answers when the file is regular; when it is not, a slow second pass finds the
line. Messages give the file, the line, the column and what was expected, and never what stands there: it may
be somebody's rating.
"""

import csv
import gzip
import io
import subprocess
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from hushrec.data.ratings import IntArray
from hushrec.errors import DataError

GZIP_MAGIC = b"\x1f\x8b"
PARQUET_MAGIC = b"PAR1"
SEPARATORS = ("\t", "::", ",", ";", "|")
QUOTED_SEPARATORS = ("\t", ",", ";")
STAND_IN = "\x1f"
DECODE_PARQUET = "import polars, sys; polars.read_parquet(sys.stdin.buffer.read()).write_ipc(sys.stdout.buffer)"


@dataclass(frozen=True, eq=False)
class Table:
    """Fields by position. `names` is None for text: whether the first line is a header is for the caller to say."""

    path: Path
    frame: pl.DataFrame
    names: list[str] | None
    lines: IntArray | None = None  # None: row after row from `first_line` on
    first_line: int = 1

    def place(self, row: int, column: str | None = None) -> str:
        """`FILE, line N, column C` of a row (counted from 0), to open a message with."""
        line = row + self.first_line if self.lines is None else int(self.lines[row])
        where = f"{self.path}, {'row' if self.names else 'line'} {line}"
        return f"{where}, column {column}" if column else where

    def first_row(self) -> list[str]:
        """Return the column names, or the fields of line 1, which may be a header."""
        return list(self.names) if self.names is not None else [field or "" for field in self.frame.row(0)]

    def without_first(self) -> "Table":
        """Return the rows below the first line, with their line numbers."""
        lines = np.arange(len(self.frame)) + self.first_line if self.lines is None else self.lines
        return Table(self.path, self.frame[1:], self.names, lines[1:], self.first_line)

    def rows(self, kept: pl.Series) -> "Table":
        """Return the rows where `kept` is true, with their line numbers."""
        lines = np.arange(len(self.frame)) + self.first_line if self.lines is None else self.lines
        return Table(self.path, self.frame.filter(kept), self.names, lines[kept.to_numpy()], self.first_line)


def read_table(path: Path, *, encoding: str | None = None, skip_rows: int = 0, one_column: bool = False) -> Table:
    """Read CSV, TSV, `::`, `;` or `|` separated text, or Parquet; plain or gzipped.

    `encoding` is that of text, UTF-8 unless given; `skip_rows` lines of text above the first row are left out. Text of
    `one_column` needs no separator.
    """
    if skip_rows < 0:
        raise DataError(f"skip_rows must be 0 or more, got {skip_rows}.")
    data = read_bytes(path)
    if data.startswith(PARQUET_MAGIC):
        if skip_rows:
            raise DataError(f"{path} is a Parquet file; skip_rows is for text. Leave it out.")
        return _read_parquet(path, data)
    data = _skip(path, _clean_text(path, _as_utf8(path, data, encoding)), skip_rows)
    separator = _find_separator(path, data, skip_rows + 1, one_column=one_column)
    if b'"' in data and separator in QUOTED_SEPARATORS:
        return _read_quoted(path, data, separator, skip_rows + 1)
    return _read_plain(path, data, separator, skip_rows + 1)


def read_bytes(path: Path) -> bytes:
    """Return the file's bytes, decompressed if it is gzipped."""
    try:
        data = path.read_bytes()
    except IsADirectoryError:
        raise DataError(f"{path} is a directory; expected a file.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a valid file name"
        raise DataError(f"{path} cannot be read: {reason}.") from None
    if not data.startswith(GZIP_MAGIC):
        return data
    try:
        return gzip.decompress(data)
    except EOFError:
        raise DataError(f"{path} is cut short: its gzip data ends early. Copy or download it again.") from None
    except (OSError, zlib.error):
        raise DataError(f"{path} is damaged: its gzip data does not decompress. Copy or download it again.") from None


def _as_utf8(path: Path, data: bytes, encoding: str | None) -> bytes:
    """Return the text in UTF-8, from the encoding given."""
    if encoding is None:
        return data
    try:
        return data.decode(encoding).encode("utf-8")
    except LookupError:
        raise DataError(
            f"encoding must be one that Python knows, such as utf-8, latin-1 or utf-16, got {encoding!r}."
        ) from None
    except ValueError:
        raise DataError(f"{path} is not {encoding} text. Pass its own --encoding.") from None


def _skip(path: Path, data: bytes, skip_rows: int) -> bytes:
    """Return the text below the first few lines."""
    for _ in range(skip_rows):
        _, found, data = data.partition(b"\n")
        if not found:
            raise DataError(f"{path} has no line after the {skip_rows} to skip. Lower --skip-rows.")
    return data


def _clean_text(path: Path, data: bytes) -> bytes:
    """UTF-8 without a byte order mark, lines ended by \\n, no empty lines at the end."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path} is UTF-16 text; expected UTF-8. Pass --encoding utf-16, or save it as UTF-8.")
    if b"\x00" in data or data.startswith(b"PK\x03\x04"):
        raise DataError(f"{path} is a binary file; expected CSV, TSV, `::` separated text or Parquet.")
    _check_utf8(path, data)
    data = data.removeprefix(b"\xef\xbb\xbf")
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    data = data.rstrip(b"\n")
    if not data.strip():
        raise DataError(f"{path} is empty; expected one rating per line: user, item, rating.")
    return data


def _check_utf8(path: Path, data: bytes) -> None:
    if data.isascii():
        return
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}, line {line}: expected UTF-8 text, found other bytes. Pass --encoding with the file's own, as in"
            " latin-1."
        ) from None


def _find_separator(path: Path, data: bytes, line: int, *, one_column: bool) -> str:
    first_line = data.split(b"\n", 1)[0].decode("utf-8")
    for separator in SEPARATORS:
        if separator in first_line:
            return separator
    if one_column:
        return SEPARATORS[0]
    raise DataError(
        f"{path}, line {line}: expected fields separated by a comma, tab, semicolon, `|` or `::`; found none."
        " If there are lines above the ratings, pass --skip-rows."
    )


def _read_plain(path: Path, data: bytes, separator: str, first_line: int) -> Table:
    """Text without quotes: a row is a line."""
    if separator == "::":
        data, separator = _single_character_separator(path, data)
    n_fields = _check_widths(path, data, separator, first_line)
    schema = {str(position): pl.String for position in range(n_fields)}
    try:
        frame = pl.read_csv(data, separator=separator, has_header=False, quote_char=None, schema=schema)
    except pl.exceptions.PolarsError:
        raise DataError(f"{path} could not be split into {n_fields} fields per line; expected plain text.") from None
    return Table(path, frame, None, first_line=first_line)


def _check_widths(path: Path, data: bytes, separator: str, first_line: int) -> int:
    """The number of fields in every line. polars fills up short lines and lets some long ones pass, so we count."""
    width = data.split(b"\n", 1)[0].count(separator.encode()) + 1
    ends = np.append(_places(data, "\n"), len(data))
    before_end = np.searchsorted(_places(data, separator), ends)
    found = np.diff(before_end, prepend=0) + 1
    if (found != width).any():
        line = int(np.argmax(found != width))
        raise DataError(
            f"{path}, line {line + first_line}: expected {width} fields as in line {first_line}, found {found[line]}."
        )
    return width


def _places(data: bytes, character: str) -> IntArray:
    return np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord(character))


def _single_character_separator(path: Path, data: bytes) -> tuple[bytes, str]:
    """`::` replaced by one character that the file does not hold."""
    for separator in ("\t", STAND_IN):
        if separator.encode() not in data:
            return data.replace(b"::", separator.encode()), separator
    raise DataError(f"{path} holds `::`, tabs and control characters at once; expected one separator.")


def _read_quoted(path: Path, data: bytes, separator: str, first_line: int) -> Table:
    """Text with quotes; where they matter, by Python's own strict reader, which knows each record's line."""
    if _quotes_are_needless(data, separator):
        return _read_plain(path, data.replace(b'"', b""), separator, first_line)
    rows, lines, next_line = [], [], first_line
    reader = csv.reader(io.StringIO(data.decode("utf-8"), newline=""), delimiter=separator, strict=True)
    try:
        for row in reader:
            rows.append(row)
            lines.append(next_line)
            next_line = reader.line_num + first_line
    except csv.Error:
        raise DataError(
            f"{path}, line {next_line}: expected quoted fields to be closed, and quotes inside them doubled."
        ) from None
    if any(len(row) != len(rows[0]) for row in rows):
        raise _ragged(path, [len(row) for row in rows], lines)
    columns = {
        str(position): pl.Series(fields, dtype=pl.String) for position, fields in enumerate(zip(*rows, strict=True))
    }
    return Table(path, pl.DataFrame(columns), None, np.array(lines, dtype=np.int64), first_line)


def _quotes_are_needless(data: bytes, separator: str) -> bool:
    """Return whether quotes come only around whole fields that hold no quote, separator or line end."""
    edges = np.sort(np.concatenate([[-1, len(data)], _places(data, "\n"), _places(data, separator)]))
    quotes = _places(data, '"')
    opening, closing = quotes[0::2], quotes[1::2]
    if len(opening) != len(closing):
        return False
    field = np.searchsorted(edges, opening)  # edges[field - 1] < opening < edges[field]
    return bool((edges[field - 1] == opening - 1).all() and (edges[field] == closing + 1).all())


def _ragged(path: Path, widths: list[int], lines: list[int]) -> DataError:
    row = next(row for row, width in enumerate(widths) if width != widths[0])
    return DataError(
        f"{path}, line {lines[row]}: expected {widths[0]} fields as in line {lines[0]}, found {widths[row]}."
    )


def _read_parquet(path: Path, data: bytes) -> Table:
    """Decoded by a child process: on some damaged files polars does not raise but ends the process it runs in."""
    command = [sys.executable, "-P", "-c", DECODE_PARQUET]
    child = subprocess.run(command, input=data, capture_output=True, check=False)
    if child.returncode != 0:
        raise DataError(f"{path} is damaged: its Parquet data cannot be read. Copy or download it again.")
    frame = pl.read_ipc(child.stdout)
    if frame.is_empty():
        raise DataError(f"{path} is empty; expected one rating per row: user, item, rating.")
    return Table(path, frame, frame.columns)
