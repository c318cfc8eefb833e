#!/usr/bin/env python3
"""Writes tiny random-weight GGUF models of many architectures, for tests.

    make_tiny_models.py FOLDER [NAME...]      all of them, or the named ones
    make_tiny_models.py --list                their names

f32 weights, 2 to 6 layers, a byte-level vocabulary (any text works), a context of 16,384 tokens and
at most 4 MB each. The same names always get the same bytes. Files appear only when complete.
"""
import argparse
import os
import pathlib
import sys

from tiny_models.model_file import SplitModel
from tiny_models.refused import refused_models
from tiny_models.served import served_models


def files(models):
    """(file name without suffix, function that writes it) for each file of each model."""
    for model in models:
        if isinstance(model, SplitModel):
            for name, tensors, keys in model.parts():
                yield name, lambda path, m=model.model, t=tensors, k=keys: m.write(path, t, k)
        else:
            yield model.name, model.write


def write_complete(write, target):
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        write(partial)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def main():
    parser = argparse.ArgumentParser(description="Writes tiny random-weight models as GGUF files.")
    parser.add_argument("folder", type=pathlib.Path, nargs="?")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    args = parser.parse_args()
    all_files = dict(files([*served_models(), *refused_models()]))
    if args.list:
        print("\n".join(all_files))
        return
    if args.folder is None:
        parser.error("a folder is needed")
    unknown = [name for name in args.names if name not in all_files]
    if unknown:
        sys.exit(f"no such model: {', '.join(unknown)}; --list prints the names")
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in args.names or all_files:
        write_complete(all_files[name], args.folder / f"{name}.gguf")
    print(f"{args.folder}: {len(args.names or all_files)} models")


if __name__ == "__main__":
    main()
