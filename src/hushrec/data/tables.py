"""Readers of delimited text files and Parquet files, with precise error messages.

A message names the file, the line, the column and what was expected, but never the content found there, which may be a
person's rating. `read_table` reads a whole file; `read_batches` reads a file of any size in batches of rows.
"""

import csv
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from hushrec.arrays import IntArray
from hushrec.data.texts import BYTES_AT_ONCE, GZIP_MAGIC, Block, raw_blocks, skip_lines, text_blocks
from hushrec.errors import DataError

PARQUET_MAGIC = b"PAR1"
SEPARATORS = ("\t", "::", ",", ";", "|")
QUOTED_SEPARATORS = ("\t", ",", ";")
STAND_IN = "\x1f"
JSON = re.compile(rb'\s*(\{\s*["}]|\[\s*["\[{\]])')  # the beginning of an object, of an array, or of lines of them
LINES_JUDGED = 100  # the number of lines from which the separator is found
QUOTED_FIELD = re.compile(r'(?<![^\n\t,;])"(?:[^"]|"")*"(?![^\n\t,;])')
BYTES_PER_ROW = 32  # an estimate, to convert a size of text to a number of rows
DECODE_PARQUET = """
import io, polars, sys
rows = polars.scan_parquet(sys.argv[1], glob=False, hive_partitioning=False)
total = rows.select(polars.len()).collect().item()
step = int(sys.argv[2])
for first in range(0, max(total, 1), step):
    batch = io.BytesIO()
    rows.slice(first, step).collect().write_ipc(batch)
    sys.stdout.buffer.write(len(batch.getvalue()).to_bytes(8, "little") + batch.getvalue())
"""


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of a file or of a table in memory, with their line or row numbers for error messages."""

    path: Path
    frame: pl.DataFrame
    names: list[str] | None  # of columns; None for a text file: the caller decides whether its first line is a header
    lines: IntArray  # line number of each row of a text file; otherwise its row number, from 1
    first_line: int = 1  # line number of the first row of the file

    def location(self, row: int, column: str) -> str:
        """Return the location of a row (counted from 0) for error messages, such as `FILE, line N, column C`."""
        return f"{self.path}, {self.unit} {self.lines[row]}, column {column}"

    @property
    def unit(self) -> str:
        """The word for a row in error messages: "line" for a text file, otherwise "row"."""
        return "row" if self.names else "line"

    def first_row(self) -> list[str]:
        """Return the column names or, for a text file, the fields of its first row, which may be a header."""
        return list(self.names) if self.names is not None else [field or "" for field in self.frame.row(0)]

    def without_first(self) -> "Table":
        """Return the table without its first row; the other rows keep their line numbers."""
        return replace(self, frame=self.frame[1:], lines=self.lines[1:])

    def filter(self, kept: pl.Series) -> "Table":
        """Return the table with only the rows for which `kept` is true."""
        return replace(self, frame=self.frame.filter(kept), lines=self.lines[kept.to_numpy()])


def read_table(path: Path, *, encoding: str | None = None, skip_rows: int = 0, one_column: bool = False) -> Table:
    """Return the table in a file: text separated by comma, tab, `::`, `;` or `|`, or Parquet; plain or gzipped.

    `encoding` is the encoding of text, by default UTF-8; `skip_rows` lines of text are skipped above the first row.
    With `one_column`, text without a separator is accepted.
    """
    batches = list(read_batches(path, encoding=encoding, skip_rows=skip_rows, one_column=one_column))
    frame = pl.concat(batch.frame for batch in batches)
    return replace(batches[0], frame=frame, lines=np.concatenate([batch.lines for batch in batches]))


def read_batches(
    path: Path,
    *,
    encoding: str | None = None,
    skip_rows: int = 0,
    one_column: bool = False,
    at_once: int = BYTES_AT_ONCE,
) -> Iterator[Table]:
    """Yield the rows of a file in order, in tables of about `at_once` bytes of text.

    A table has `at_once` / `BYTES_PER_ROW` rows if the file is Parquet or has quoted separators. Only the first table
    can begin with a header. `read_table` explains the other arguments.
    """
    if skip_rows < 0:
        raise DataError(f"skip_rows must be 0 or more, got {skip_rows}.")
    raw = raw_blocks(path, at_once)
    first = next(raw, b"")
    raw = chain([first], raw) if first else raw
    if first.startswith(PARQUET_MAGIC):
        if skip_rows:
            raise DataError(f"skip_rows must not be given for {path}, which is a Parquet file. Leave it out.")
        yield from _parquet_batches(path, raw, _rows_of(at_once))
        return
    blocks = skip_lines(path, text_blocks(path, raw, encoding), skip_rows)
    yield from _tables(path, blocks, _rows_of(at_once), one_column=one_column)


def _rows_of(size: int) -> int:
    return max(1, size // BYTES_PER_ROW)


class Shape(NamedTuple):
    """The form of a text file, found from its first row."""

    path: Path
    separator: str
    width: int  # number of fields
    line: int  # line number of the first row


def _tables(path: Path, blocks: Iterator[Block], rows_at_once: int, *, one_column: bool) -> Iterator[Table]:
    """Yield one table per block of text, without empty lines.

    Quotes around whole fields are removed, if no field contains a separator, a quote or a line end. The first block
    with other quotes, and all blocks after it, are read by `_quoted_tables`.
    """
    shape: Shape | None = None
    separator, blocks = _find_separator(path, blocks, one_column=one_column)
    for block in blocks:
        if b'"' in block.data and separator in QUOTED_SEPARATORS and not _quotes_are_needless(block.data, separator):
            yield from _quoted_tables(path, chain([block], blocks), separator, shape, rows_at_once)
            return
        data, lines = _filled_lines(block)
        if not data:
            continue
        if separator in QUOTED_SEPARATORS:
            data = data.replace(b'"', b"")
        if shape is None:
            shape = Shape(path, separator, data.partition(b"\n")[0].count(separator.encode()) + 1, int(lines[0]))
        yield _plain_table(shape, data, lines)


def _find_separator(path: Path, blocks: Iterator[Block], *, one_column: bool) -> tuple[str, Iterator[Block]]:
    """Return the separator of the fields, and all `blocks`.

    A separator in line 1 is a candidate if more than half of the first lines have it as often as line 1 does. The
    candidate that makes the most fields is chosen; of several such, the one on which the most lines agree. Raise
    `DataError` if that does not decide. Without candidates, the first known separator in line 1 is chosen; if line 1
    has none, raise `DataError`, except with `one_column`. Raise `DataError` for JSON.
    """
    held: list[Block] = []
    for block in blocks:
        held.append(block)
        if block.first_line + block.data.count(b"\n") >= held[0].first_line + LINES_JUDGED:
            break
    head = b"\n".join(block.data for block in held).split(b"\n", LINES_JUDGED)[:LINES_JUDGED]
    if JSON.match(b"\n".join(head)):
        raise DataError(
            f"{path} must be CSV, TSV, `::` separated text or Parquet, but is JSON. Save it as CSV or Parquet, or in"
            " Python pass a frame."
        )
    lines = [line for line in QUOTED_FIELD.sub('""', b"\n".join(head).decode("utf-8")).split("\n") if line]
    ranks: dict[str, tuple[int, int]] = {}
    for separator in SEPARATORS:
        counts = [line.count(separator) for line in lines]
        if separator in lines[0] and counts.count(counts[0]) > len(lines) / 2:
            ranks[separator] = (counts[0], counts.count(counts[0]))
    best = [separator for separator, rank in ranks.items() if rank == max(ranks.values())]
    if len(best) > 1:
        raise DataError(
            f"{path}, line {held[0].first_line}: expected one separator, but both {best[0]!r} and {best[1]!r} divide"
            f" the lines into {ranks[best[0]][0] + 1} fields. Save the file as CSV with quotes around every field."
        )
    best += [separator for separator in SEPARATORS if separator in lines[0]] + [SEPARATORS[0]] * one_column
    if best:
        return best[0], chain(held, blocks)
    raise DataError(
        f"{path}, line {held[0].first_line}: expected fields separated by a comma, tab, semicolon, `|` or `::`; found"
        " none. If there are lines above the ratings, pass --skip-rows."
    )


def _filled_lines(block: Block) -> tuple[bytes, IntArray]:
    """Return the text of a block without empty lines, and the line numbers of the other lines."""
    data = block.data
    lines = np.arange(data.count(b"\n") + 1) + block.first_line
    if b"\n\n" in b"\n" + data + b"\n":
        texts = data.split(b"\n")
        data, lines = b"\n".join(filter(None, texts)), lines[[text != b"" for text in texts]]
    return data, lines


def _plain_table(shape: Shape, data: bytes, lines: IntArray) -> Table:
    separator = shape.separator
    if separator == "::":
        data, separator = _single_character_separator(shape.path, data)
    _check_widths(shape, data, lines, separator)
    if shape.width == 1:  # Polars skips empty fields
        fields = data.decode("utf-8").split("\n")
        return Table(shape.path, pl.DataFrame({"0": fields}), None, lines, shape.line)
    schema = {str(position): pl.String for position in range(shape.width)}
    try:
        frame = pl.read_csv(data, separator=separator, has_header=False, quote_char=None, schema=schema)
    except pl.exceptions.PolarsError:
        raise DataError(
            f"{shape.path} must have {shape.width} fields on every line, but cannot be read as such a table. Save it as"
            " CSV with another program."
        ) from None
    return Table(shape.path, frame, None, lines, shape.line)


def _check_widths(shape: Shape, data: bytes, lines: IntArray, separator: str) -> None:
    """Raise `DataError` if a line does not have `shape.width` fields; Polars alone would accept some such lines.

    `lines` has the line numbers of `data`. `separator` is the character between its fields; it may have replaced the
    file's separator `::`.
    """
    ends = np.append(_places(data, "\n"), len(data))
    before_end = np.searchsorted(_places(data, separator), ends)
    found = np.diff(before_end, prepend=0) + 1
    if (found != shape.width).any():
        row = int(np.argmax(found != shape.width))
        raise _ragged(shape, int(found[row]), int(lines[row]))


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
    path: Path, blocks: Iterator[Block], separator: str, shape: Shape | None, rows_at_once: int
) -> Iterator[Table]:
    """Yield tables from text with quoted fields that contain separators, quotes or line ends, read by the module `csv`.

    `shape` is the form of the file if an earlier block has determined it, otherwise None.
    """
    filled = _quoted_rows(path, blocks, separator, shape)
    while batch := list(islice(filled, rows_at_once)):
        shapes, lines, rows = zip(*batch, strict=True)
        fields = zip(*rows, strict=True)
        frame = pl.DataFrame({str(number): pl.Series(field, dtype=pl.String) for number, field in enumerate(fields)})
        yield Table(path, frame, None, np.array(lines, dtype=np.int64), shapes[0].line)


def _quoted_rows(
    path: Path, blocks: Iterator[Block], separator: str, shape: Shape | None
) -> Iterator[tuple[Shape, int, list[str]]]:
    """Yield the form of the file, the line number and the fields of each row that is not an empty line."""
    first = next(blocks)
    texts = (line for block in chain([first], blocks) for line in block.data.decode("utf-8").split("\n"))
    reader = csv.reader((f"{text}\n" for text in texts), delimiter=separator, strict=True)
    line = first.first_line
    try:
        for row in reader:
            if row:
                shape = shape or Shape(path, separator, len(row), line)
                if len(row) != shape.width:
                    raise _ragged(shape, len(row), line)
                yield shape, line, row
            line = reader.line_num + first.first_line
    except csv.Error:
        raise DataError(
            f"{path}, line {line}: expected quoted fields to be closed, and quotes inside them doubled."
        ) from None


def _quotes_are_needless(data: bytes, separator: str) -> bool:
    """Return whether quotes only enclose whole fields that contain no quote, separator or line end."""
    edges = np.sort(np.concatenate([[-1, len(data)], _places(data, "\n"), _places(data, separator)]))
    quotes = _places(data, '"')
    opening, closing = quotes[0::2], quotes[1::2]
    if len(opening) != len(closing):
        return False
    field = np.searchsorted(edges, opening)  # edges[field - 1] < opening < edges[field]
    return bool((edges[field - 1] == opening - 1).all() and (edges[field] == closing + 1).all())


def _parquet_batches(path: Path, raw: Iterator[bytes], rows_at_once: int) -> Iterator[Table]:
    """Yield tables from Parquet data. A child process decodes them, because polars aborts on some damaged files."""
    n_rows = 0
    with _plain_file(path, raw) as plain, _decoding(plain, rows_at_once) as child:
        assert child.stdout is not None
        while size := child.stdout.read(8):
            batch = child.stdout.read(int.from_bytes(size, "little"))
            if len(batch) < int.from_bytes(size, "little"):
                break
            frame = pl.read_ipc(batch)
            if frame.is_empty():
                raise DataError(f"{path} must have at least one row, but is empty.")
            yield Table(path, frame, frame.columns, np.arange(len(frame)) + n_rows + 1)
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
def _decoding(plain: Path, rows_at_once: int) -> Iterator["subprocess.Popen[bytes]"]:
    """Yield a child process that decodes a Parquet file, `rows_at_once` rows at a time; kill it on exit.

    The process writes each batch of rows to its stdout: the size in 8 bytes, then the rows in Arrow IPC format.
    """
    command = [sys.executable, "-P", "-c", DECODE_PARQUET, str(plain), str(rows_at_once)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        try:
            yield child
        finally:
            child.kill()
