#!/usr/bin/env python3
"""Writes the f32 copy of a GGUF model: every tensor dequantised, all metadata kept.

    dequantize_gguf.py MODEL.gguf OUT.gguf

With quantised weights the engine also quantises activations, which turns the smallest rounding into
large jumps; fidelity is therefore measured on f32 copies (docs/numerics.md).
One tensor is held at a time. The result appears under its name only when it is complete.
"""
import os
import pathlib
import sys

import gguf
import numpy as np

# The writer sets these itself: counts and offsets of the file, and the architecture given to it.
WRITTEN_BY_WRITER = {"GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture"}
FILE_TYPE_ALL_F32 = 0


def copy_metadata(reader, writer):
    """Copies every key with its own type; only the file type changes."""
    for field in reader.fields.values():
        if field.name in WRITTEN_BY_WRITER or field.name == "general.file_type":
            continue
        kind = field.types[0]
        element = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, element)
    writer.add_file_type(FILE_TYPE_ALL_F32)
    writer.data_alignment = reader.alignment


def as_f32(tensor):
    """The tensor's values, in C order: NumPy's shape is the GGUF shape reversed."""
    shape = [int(n) for n in reversed(tensor.shape)]
    if tensor.tensor_type == gguf.GGMLQuantizationType.F32:
        values = np.asarray(tensor.data)
    else:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return np.ascontiguousarray(values, np.float32).reshape(shape)


def dequantize(source, target):
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.get_field("general.architecture").contents())
    copy_metadata(reader, writer)
    for tensor in reader.tensors:
        shape = [int(n) for n in reversed(tensor.shape)]
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), 4 * int(tensor.n_elements))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in reader.tensors:
        writer.write_tensor_data(as_f32(tensor))
    writer.close()


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: dequantize_gguf.py MODEL.gguf OUT.gguf")
    source, target = map(pathlib.Path, sys.argv[1:])
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        dequantize(source, partial)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    print(f"{target}: {target.stat().st_size / 1e6:.0f} MB, all tensors f32")


if __name__ == "__main__":
    main()
