"""Readers of delimited text files and Parquet files, with precise error messages.

A message names the file, the line, the column and what was expected, but never the content found there, which may be a
person's rating. `read_table` reads a whole file; `read_batches` reads a file of any size in batches of rows.
"""

import csv
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from hushrec.data.ratings import IntArray
from hushrec.data.texts import GZIP_MAGIC, Block, raw_blocks, skip_lines, text_blocks
from hushrec.errors import DataError

PARQUET_MAGIC = b"PAR1"
SEPARATORS = ("\t", "::", ",", ";", "|")
QUOTED_SEPARATORS = ("\t", ",", ";")
STAND_IN = "\x1f"
BYTES_PER_ROW = 32  # an estimate, to convert a size of text to a number of rows
DECODE_PARQUET = """
import io, polars, sys
rows = polars.scan_parquet(sys.argv[1], glob=False, hive_partitioning=False)
total = rows.select(polars.len()).collect().item()
step = int(sys.argv[2]) or max(total, 1)
for first in range(0, max(total, 1), step):
    batch = io.BytesIO()
    rows.slice(first, step).collect().write_ipc(batch)
    sys.stdout.buffer.write(len(batch.getvalue()).to_bytes(8, "little") + batch.getvalue())
"""


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of a file, with their line numbers for error messages."""

    path: Path
    frame: pl.DataFrame
    names: list[str] | None  # of columns; None for a text file: the caller decides whether its first line is a header
    lines: IntArray | None = None  # line number of each row; None: consecutive from `first_line` on
    first_line: int = 1

    def place(self, row: int, column: str) -> str:
        """Return the location of a row (counted from 0) for error messages, such as `FILE, line N, column C`."""
        return f"{self.path}, {self.unit} {self.all_lines[row]}, column {column}"

    @property
    def unit(self) -> str:
        """What error messages call a row: "line" for a text file, otherwise "row"."""
        return "row" if self.names else "line"

    @property
    def all_lines(self) -> IntArray:
        return np.arange(len(self.frame)) + self.first_line if self.lines is None else self.lines

    def first_row(self) -> list[str]:
        """Return the column names or, for a text file, the fields of its first row, which may be a header."""
        return list(self.names) if self.names is not None else [field or "" for field in self.frame.row(0)]

    def without_first(self) -> "Table":
        """Return the table without its first row; the other rows keep their line numbers."""
        return Table(self.path, self.frame[1:], self.names, self.all_lines[1:], self.first_line)

    def rows(self, kept: pl.Series) -> "Table":
        lines = self.all_lines[kept.to_numpy()]
        return Table(self.path, self.frame.filter(kept), self.names, lines, self.first_line)


def read_table(path: Path, *, encoding: str | None = None, skip_rows: int = 0, one_column: bool = False) -> Table:
    """Return the table in a file: text separated by comma, tab, `::`, `;` or `|`, or Parquet; plain or gzipped.

    `encoding` is the encoding of text, by default UTF-8; `skip_rows` lines of text are skipped above the first row.
    With `one_column`, text without a separator is accepted.
    """
    (table,) = read_batches(path, encoding=encoding, skip_rows=skip_rows, one_column=one_column)
    return table


def read_batches(
    path: Path, *, encoding: str | None = None, skip_rows: int = 0, one_column: bool = False, at_once: int | None = None
) -> Iterator[Table]:
    """Yield the rows of a file in order, in tables of about `at_once` bytes; in one table if `at_once` is None.

    From Parquet, and from text that `_quoted_tables` reads, a table has `at_once` / `BYTES_PER_ROW` rows. Only the
    first table can begin with a header. `read_table` explains the other arguments.
    """
    if skip_rows < 0:
        raise DataError(f"skip_rows must be 0 or more, got {skip_rows}.")
    raw = raw_blocks(path, at_once)
    first = next(raw, b"")
    raw = chain([first], raw) if first else raw
    if first.startswith(PARQUET_MAGIC):
        if skip_rows:
            raise DataError(f"skip_rows must not be given for {path}, which is a Parquet file. Leave it out.")
        yield from _parquet_batches(path, raw, at_once)
        return
    blocks = skip_lines(path, text_blocks(path, raw, encoding, whole=at_once is None), skip_rows)
    yield from _tables(path, blocks, at_once, one_column=one_column)


class Shape(NamedTuple):
    """The form of a text file, found from its first row: separator, number of fields, and that row's line number."""

    path: Path
    separator: str
    width: int
    line: int


def _tables(path: Path, blocks: Iterator[Block], at_once: int | None, *, one_column: bool) -> Iterator[Table]:
    """Yield one table per block of text.

    Quotes that only enclose whole fields are removed. The first block with other quotes, such as around a comma, and
    all blocks after it are read by `_quoted_tables`.
    """
    shape: Shape | None = None
    for block in blocks:
        data, line = block
        separator = _find_separator(path, block, one_column=one_column) if shape is None else shape.separator
        if b'"' in data and separator in QUOTED_SEPARATORS:
            if not _quotes_are_needless(data, separator):
                yield from _quoted_tables(path, chain([block], blocks), separator, shape, at_once)
                return
            data = data.replace(b'"', b"")
        if shape is None:
            shape = Shape(path, separator, data.partition(b"\n")[0].count(separator.encode()) + 1, line)
        yield _plain_table(shape, Block(data, line))


def _find_separator(path: Path, block: Block, *, one_column: bool) -> str:
    first_line = block.data.partition(b"\n")[0].decode("utf-8")
    for separator in SEPARATORS:
        if separator in first_line:
            return separator
    if one_column:
        return SEPARATORS[0]
    raise DataError(
        f"{path}, line {block.first_line}: expected fields separated by a comma, tab, semicolon, `|` or `::`; found"
        " none. If there are lines above the ratings, pass --skip-rows."
    )


def _plain_table(shape: Shape, block: Block) -> Table:
    """Return the table of a block of text without quotes, in which every line is a row."""
    data, separator = block.data, shape.separator
    if separator == "::":
        data, separator = _single_character_separator(shape.path, data)
    _check_widths(shape, Block(data, block.first_line), separator)
    schema = {str(position): pl.String for position in range(shape.width)}
    try:
        frame = pl.read_csv(data, separator=separator, has_header=False, quote_char=None, schema=schema)
    except pl.exceptions.PolarsError:
        raise DataError(
            f"{shape.path} must have {shape.width} fields on every line, but cannot be read as such a table. Save it as"
            " CSV with another program."
        ) from None
    lines = None if block.first_line == shape.line else np.arange(len(frame)) + block.first_line
    return Table(shape.path, frame, None, lines, block.first_line)


def _check_widths(shape: Shape, block: Block, separator: str) -> None:
    """Raise `DataError` if a line does not have `shape.width` fields. Polars does not refuse all such lines.

    `separator` is the character between the fields of `block`: that of the file, or the one that replaced `::`.
    """
    ends = np.append(_places(block.data, "\n"), len(block.data))
    before_end = np.searchsorted(_places(block.data, separator), ends)
    found = np.diff(before_end, prepend=0) + 1
    if (found != shape.width).any():
        row = int(np.argmax(found != shape.width))
        raise _ragged(shape, int(found[row]), row + block.first_line)


def _ragged(shape: Shape, found: int, line: int) -> DataError:
    return DataError(
        f"{shape.path}, line {line}: expected {shape.width} fields as in line {shape.line}, found {found}."
    )


def _places(data: bytes, character: str) -> IntArray:
    return np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord(character))


def _single_character_separator(path: Path, data: bytes) -> tuple[bytes, str]:
    """Return the text with `::` replaced by a character that it does not contain, and that character."""
    for separator in ("\t", STAND_IN):
        if separator.encode() not in data:
            return data.replace(b"::", separator.encode()), separator
    raise DataError(
        f"{path} must not contain both tabs and the character U+001F if fields are separated by `::`. Save it as CSV."
    )


def _quoted_tables(
    path: Path, blocks: Iterator[Block], separator: str, shape: Shape | None, at_once: int | None
) -> Iterator[Table]:
    """Yield tables from text with quoted fields that contain separators, quotes or line ends, read by the module `csv`.

    `shape` is the form of the file if an earlier block has determined it, otherwise None.
    """
    first = next(blocks)
    next_line = first.first_line
    texts = (line for block in chain([first], blocks) for line in block.data.decode("utf-8").split("\n"))
    reader = csv.reader((f"{text}\n" for text in texts), delimiter=separator, strict=True)
    rows: list[list[str]] = []
    lines: list[int] = []
    limit = None if at_once is None else max(1, at_once // BYTES_PER_ROW)
    while True:
        try:
            for row in islice(reader, limit):
                shape = shape or Shape(path, separator, len(row), next_line)
                if len(row) != shape.width:
                    raise _ragged(shape, len(row), next_line)
                rows.append(row)
                lines.append(next_line)
                next_line = reader.line_num + first.first_line
        except csv.Error:
            raise DataError(
                f"{path}, line {next_line}: expected quoted fields to be closed, and quotes inside them doubled."
            ) from None
        if not rows:
            return
        fields = zip(*rows, strict=True)
        frame = pl.DataFrame({str(place): pl.Series(field, dtype=pl.String) for place, field in enumerate(fields)})
        yield Table(path, frame, None, np.array(lines, dtype=np.int64), lines[0])
        rows, lines = [], []


def _quotes_are_needless(data: bytes, separator: str) -> bool:
    """Return whether quotes only enclose whole fields that contain no quote, separator or line end."""
    edges = np.sort(np.concatenate([[-1, len(data)], _places(data, "\n"), _places(data, separator)]))
    quotes = _places(data, '"')
    opening, closing = quotes[0::2], quotes[1::2]
    if len(opening) != len(closing):
        return False
    field = np.searchsorted(edges, opening)  # edges[field - 1] < opening < edges[field]
    return bool((edges[field - 1] == opening - 1).all() and (edges[field] == closing + 1).all())


def _parquet_batches(path: Path, raw: Iterator[bytes], at_once: int | None) -> Iterator[Table]:
    """Yield tables from Parquet data. A child process decodes them, because polars aborts on some damaged files."""
    step, n_rows = 0 if at_once is None else max(1, at_once // BYTES_PER_ROW), 0
    with _plain_file(path, raw) as plain, _decoding(plain, step) as child:
        assert child.stdout is not None
        while size := child.stdout.read(8):
            batch = child.stdout.read(int.from_bytes(size, "little"))
            if len(batch) < int.from_bytes(size, "little"):
                break
            frame = pl.read_ipc(batch)
            if frame.is_empty():
                raise DataError(f"{path} must have one rating per row (user, item, rating), but is empty.")
            yield Table(path, frame, frame.columns, first_line=n_rows + 1)
            n_rows += len(frame)
        if child.wait() != 0:
            raise DataError(f"{path} is damaged: its Parquet data cannot be read. Copy or download it again.")


@contextmanager
def _plain_file(path: Path, raw: Iterator[bytes]) -> Iterator[Path]:
    """Yield the path of the file itself or, if it is gzipped or a pipe, of a temporary decompressed copy."""
    if path.is_file() and not _starts_with(path, GZIP_MAGIC):
        yield path.absolute()
        return
    with tempfile.NamedTemporaryFile() as copy:
        copy.writelines(raw)
        copy.flush()
        yield Path(copy.name)


def _starts_with(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


@contextmanager
def _decoding(plain: Path, step: int) -> Iterator["subprocess.Popen[bytes]"]:
    """Yield a child process that decodes a Parquet file, `step` rows at a time (all at once if 0); kill it at the end.

    The process writes each batch of rows to its stdout: the size in 8 bytes, then the rows in Arrow IPC format.
    """
    command = [sys.executable, "-P", "-c", DECODE_PARQUET, str(plain), str(step)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        try:
            yield child
        finally:
            child.kill()
