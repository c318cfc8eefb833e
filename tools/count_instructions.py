#!/usr/bin/env python3
"""Counts the instructions of one attention step with callgrind and compares them with a baseline.

Times on a shared machine are noise; instruction counts of a fixed call are not, so a change of the
kernels that makes them do more work shows here. Instruction set avx2, because valgrind knows no
AVX-512. More than 3 % above the baseline fails; below it, the baseline should be renewed (--update).
Skipped by name (exit code 77) without valgrind, on another processor or with another compiler.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

TOLERANCE = 0.03
SKIPPED = 77
STEP = "volvelle_counted_step"
# Arguments of the program: group, KV heads, head_dim, type, rows, tokens.
CASES = {
    "decode, head_dim 64, group 3, f16, 2048 rows": "3 3 64 f16 2048 1",
    "decode, head_dim 64, group 3, q8_0, 2048 rows": "3 3 64 q8_0 2048 1",
    "decode, head_dim 64, group 3, q4_0, 2048 rows": "3 3 64 q4_0 2048 1",
    "decode, head_dim 128, group 4, f16, 1024 rows": "4 2 128 f16 1024 1",
    "decode of 4 tokens, head_dim 64, group 3, f16, 1024 rows": "3 1 64 f16 1024 4",
    "prefill of 64 tokens, head_dim 64, group 3, f16, 512 rows": "3 1 64 f16 512 64",
}


def count(program, arguments):
    """Instructions inside the counted step."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", f"--toggle-collect={STEP}",
                   f"--callgrind-out-file={folder}/out", program, *arguments.split()]
        run = subprocess.run(command, capture_output=True, text=True, check=False,
                             env=dict(os.environ, VOLVELLE_ISA="avx2"))
        found = re.search(r"Collected : (\d+)", run.stderr)
        if run.returncode != 0 or not found or int(found[1]) == 0:
            sys.exit(f"instruction counts: valgrind failed ({run.returncode}):\n{run.stderr}")
        return int(found[1])


def skip(reason):
    print(f"instruction counts: skipped, {reason}")
    sys.exit(SKIPPED)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--baseline", required=True, type=pathlib.Path)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--update", action="store_true", help="write the baseline")
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        skip("valgrind is not installed")
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if not cpuinfo.exists() or " avx2" not in cpuinfo.read_text():
        skip("this processor has no avx2")
    baseline = json.loads(options.baseline.read_text()) if options.baseline.exists() else {}
    if not options.update and baseline.get("compiler") != options.compiler:
        skip(f"the baseline is of {baseline.get('compiler')}, this build of {options.compiler}")

    counts = {name: count(options.program, arguments) for name, arguments in CASES.items()}
    if options.update:
        text = json.dumps({"compiler": options.compiler, "instructions": counts}, indent=1)
        options.baseline.write_text(text + "\n")
    failed = 0
    for name, found in counts.items():
        expected = found if options.update else baseline["instructions"].get(name)
        if expected is None:
            sys.exit(f"instruction counts: the baseline has no '{name}'; renew it with --update")
        ratio = found / expected
        bad = ratio > 1 + TOLERANCE
        failed += bad
        note = "  TOO MANY" if bad else "  fewer: --update" if ratio < 1 - TOLERANCE else ""
        print(f"{found:>12,}  {ratio:6.3f} of the baseline  {name}{note}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
