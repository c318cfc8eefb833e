#!/usr/bin/env python3
"""Writes Jane Austen's six novels (public domain) as text files, out of an unpacked Debian package.

    austen_from_debian.py UNPACKED_DIR OUT_DIR

r-cran-janeaustenr ships the novels as R's lazy-load database: Rdata.rdb holds records (big-endian
uint32 of the unpacked length, then zlib, bz2 or LZMA data), Rdata.rdx is the compressed index of
name -> (offset, length). Both hold R's XDR serialisation, of which a reader for lists and strings
follows; R itself is not needed. Standard library only.
"""
import bz2
import gzip
import lzma
import os
import pathlib
import struct
import sys
import zlib

# SEXP type codes of R's serialisation (R Internals, section 1.8).
SYMBOL, PAIRLIST, CHAR, LOGICAL, INTEGER, REAL, STRINGS, LIST = 1, 2, 9, 10, 13, 14, 16, 19
GLOBAL_ENV, NULL_VALUE, REFERENCE = 253, 254, 255
HAS_ATTRIBUTES, HAS_TAG = 0x200, 0x400


class XdrReader:
    """Reads one serialised R value. Strings become str or None (NA), named lists become dict."""

    def __init__(self, data):
        if data[:2] != b"X\n":
            raise ValueError(f"not R's XDR serialisation: begins with {data[:4]!r}")
        self.data, self.at, self.symbols = data, 2, []
        version = self.integer()
        self.integer()  # version of R that wrote it
        self.integer()  # oldest version that can read it
        if version == 3:
            length = self.integer()
            self.at += length  # name of the native encoding

    def integer(self):
        (value,) = struct.unpack_from(">i", self.data, self.at)
        self.at += 4
        return value

    def value(self):
        flags = self.integer()
        kind = flags & 0xFF
        if kind in (0, NULL_VALUE, GLOBAL_ENV):
            return None
        if kind == REFERENCE:
            return self.symbols[(flags >> 8) - 1]
        if kind == SYMBOL:
            self.symbols.append(self.value())
            return self.symbols[-1]
        if kind == CHAR:
            return self.characters()
        if kind == PAIRLIST:
            return self.pairlist(flags)
        return self.vector(kind, bool(flags & HAS_ATTRIBUTES))

    def characters(self):
        length = self.integer()
        if length < 0:
            return None
        self.at += length
        return self.data[self.at - length:self.at].decode("utf-8")

    def pairlist(self, flags):
        """A chain of (tag, value) cells; the flags of each next cell stand before it."""
        result = {}
        while flags & 0xFF == PAIRLIST:
            if flags & HAS_ATTRIBUTES:
                self.value()
            tag = self.value() if flags & HAS_TAG else None
            result[tag] = self.value()
            flags = self.integer()
        return result

    def vector(self, kind, has_attributes):
        length = self.integer()
        if kind in (LOGICAL, INTEGER):
            values = [self.integer() for _ in range(length)]
        elif kind == REAL:
            values = list(struct.unpack_from(f">{length}d", self.data, self.at))
            self.at += 8 * length
        elif kind in (STRINGS, LIST):
            values = [self.value() for _ in range(length)]
        else:
            raise ValueError(f"R type {kind} at byte {self.at} is not supported")
        attributes = self.value() if has_attributes else None
        if kind == LIST and attributes and attributes.get("names"):
            return dict(zip(attributes["names"], values))
        return values


def unpack_record(record):
    (length,) = struct.unpack_from(">I", record)
    method, body = record[4:5], record[5:]
    if method == b"Z":
        raw_lzma2 = [{"id": lzma.FILTER_LZMA2, "preset": 6}]
        data = lzma.decompress(body, format=lzma.FORMAT_RAW, filters=raw_lzma2)
    elif method == b"2":
        data = bz2.decompress(body)
    elif method == b"0":
        data = body
    else:  # no method byte: zlib
        data = zlib.decompress(record[4:])
    if len(data) != length:
        raise ValueError(f"record unpacks to {len(data)} bytes, {length} expected")
    return data


def novels(folder):
    """Yields (name, lines) of every data set of the package."""
    database = next(pathlib.Path(folder).rglob("janeaustenr/data/Rdata.rdb"), None)
    if database is None:
        raise FileNotFoundError(f"no janeaustenr/data/Rdata.rdb below {folder}")
    index = database.with_suffix(".rdx").read_bytes()
    index = gzip.decompress(index) if index[:2] == b"\x1f\x8b" else zlib.decompress(index)
    records = database.read_bytes()
    for name, (offset, length) in XdrReader(index).value()["variables"].items():
        record = unpack_record(records[offset:offset + length])
        yield name, XdrReader(record).value()


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: austen_from_debian.py UNPACKED_DIR OUT_DIR")
    out = pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    for name, lines in novels(sys.argv[1]):
        target, partial = out / f"{name}.txt", out / f".{name}.{os.getpid()}.partial"
        partial.write_text("\n".join(line or "" for line in lines) + "\n", encoding="utf-8")
        os.replace(partial, target)
        print(f"{target}: {target.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
