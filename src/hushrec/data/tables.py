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
    """Fields by position. `names` is None for text: whether line 1 is a header is for the caller to say."""

    path: Path
    frame: pl.DataFrame
    names: list[str] | None
    lines: IntArray | None = None

    def place(self, row: int, column: str | None = None) -> str:
        """`FILE, line N, column C` of a row (counted from 0), to open a message with."""
        line = row + 1 if self.lines is None else int(self.lines[row])
        where = f"{self.path}, {'row' if self.names else 'line'} {line}"
        return f"{where}, column {column}" if column else where

    def first_row(self) -> list[str]:
        """The column names, or the fields of line 1, which may be a header."""
        return list(self.names) if self.names is not None else [field or "" for field in self.frame.row(0)]

    def without_first(self) -> "Table":
        """The rows below line 1, with their line numbers."""
        lines = np.arange(1, len(self.frame) + 1) if self.lines is None else self.lines
        return Table(self.path, self.frame[1:], self.names, lines[1:])


def read_table(path: Path) -> Table:
    """Reads CSV, TSV, `::`, `;` or `|` separated text, or Parquet; plain or gzipped."""
    data = read_bytes(path)
    if data.startswith(PARQUET_MAGIC):
        return _read_parquet(path, data)
    data = _clean_text(path, data)
    separator = _find_separator(path, data)
    if b'"' in data and separator in QUOTED_SEPARATORS:
        return _read_quoted(path, data, separator)
    return _read_plain(path, data, separator)


def read_bytes(path: Path) -> bytes:
    """The file's bytes, decompressed if it is gzipped."""
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


def _clean_text(path: Path, data: bytes) -> bytes:
    """UTF-8 without a byte order mark, lines ended by \\n, no empty lines at the end."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path} is UTF-16 text; expected UTF-8. Save it as UTF-8.")
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
        raise DataError(f"{path}, line {line}: expected UTF-8 text, found other bytes. Save it as UTF-8.") from None


def _find_separator(path: Path, data: bytes) -> str:
    first_line = data.split(b"\n", 1)[0].decode("utf-8")
    for separator in SEPARATORS:
        if separator in first_line:
            return separator
    raise DataError(f"{path}, line 1: expected fields separated by a comma, tab, semicolon, `|` or `::`; found none.")


def _read_plain(path: Path, data: bytes, separator: str) -> Table:
    """Text without quotes: a row is a line.

    polars refuses a line with too many fields but fills up a short one. As no line is too long, all are
    complete if and only if the separators add up.
    """
    if separator == "::":
        data, separator = _single_character_separator(path, data)
    mark = separator.encode()
    n_fields = data.split(b"\n", 1)[0].count(mark) + 1
    n_lines = data.count(b"\n") + 1
    schema = {str(position): pl.String for position in range(n_fields)}
    if data.count(mark) != n_lines * (n_fields - 1):
        raise _ragged(path, [line.count(mark) + 1 for line in data.split(b"\n")])
    try:
        frame = pl.read_csv(data, separator=separator, has_header=False, quote_char=None, schema=schema)
    except pl.exceptions.PolarsError:
        raise _ragged(path, [line.count(mark) + 1 for line in data.split(b"\n")]) from None
    if len(frame) != n_lines:
        raise DataError(f"{path} could not be split into lines; expected one rating per line.")
    return Table(path, frame, None)


def _single_character_separator(path: Path, data: bytes) -> tuple[bytes, str]:
    """`::` replaced by one character that the file does not hold."""
    for separator in ("\t", STAND_IN):
        if separator.encode() not in data:
            return data.replace(b"::", separator.encode()), separator
    raise DataError(f"{path} holds `::`, tabs and control characters at once; expected one separator.")


def _read_quoted(path: Path, data: bytes, separator: str) -> Table:
    """Text with quotes: Python's own reader in its strict mode, which knows each record's line."""
    rows, lines, next_line = [], [], 1
    reader = csv.reader(io.StringIO(data.decode("utf-8"), newline=""), delimiter=separator, strict=True)
    try:
        for row in reader:
            rows.append(row)
            lines.append(next_line)
            next_line = reader.line_num + 1
    except csv.Error:
        raise DataError(
            f"{path}, line {next_line}: expected quoted fields to be closed, and quotes inside them doubled."
        ) from None
    n_fields = len(rows[0])
    if any(len(row) != n_fields for row in rows):
        raise _ragged(path, [len(row) for row in rows], lines)
    columns = {
        str(position): pl.Series(values, dtype=pl.String) for position, values in enumerate(zip(*rows, strict=True))
    }
    return Table(path, pl.DataFrame(columns), None, np.array(lines, dtype=np.int64))


def _ragged(path: Path, widths: list[int], lines: list[int] | None = None) -> DataError:
    row = next((row for row, width in enumerate(widths) if width != widths[0]), 0)
    line = lines[row] if lines else row + 1
    return DataError(f"{path}, line {line}: expected {widths[0]} fields as in line 1, found {widths[row]}.")


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
