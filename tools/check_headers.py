#!/usr/bin/env python3
"""Checks that every public header compiles alone, and how much of our own code the main one pulls in.

The closure of context_memory.hpp is counted over our own headers: what a user's compiler has to
read before the first line of their program.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

MAIN_HEADER = "volvelle/memory/context_memory.hpp"
MAX_CLOSURE_FILES, MAX_CLOSURE_LINES, MAX_PUBLIC_HEADERS = 25, 3000, 50
OWN_INCLUDE = re.compile(r'^\s*#\s*include\s+[<"](volvelle/[^>"]+)[>"]', re.MULTILINE)


def compile_alone(compiler, include, name):
    """The compiler's complaint about a file that only includes `name`, or an empty string."""
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "alone.cpp"
        # Twice: a header without a guard fails too.
        source.write_text(f'#include "{name}"\n#include "{name}"\n', encoding="utf-8")
        command = [compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", f"-I{include}"]
        run = subprocess.run(command + [str(source)], capture_output=True, text=True, check=False)
        return "" if run.returncode == 0 and not run.stderr else run.stderr.strip()


def closure(include, name):
    """Our own headers that `name` includes, directly or not, with itself."""
    seen, todo = set(), [name]
    while todo:
        header = todo.pop()
        if header not in seen and (include / header).is_file():
            seen.add(header)
            todo += OWN_INCLUDE.findall((include / header).read_text(encoding="utf-8"))
    return seen


def check(root, compiler):
    include = root / "include"
    headers = sorted(str(path.relative_to(include)) for path in include.rglob("*.hpp"))
    problems = []
    if len(headers) > MAX_PUBLIC_HEADERS:
        problems.append(f"{len(headers)} public headers, at most {MAX_PUBLIC_HEADERS} allowed")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, message in zip(headers, pool.map(
                lambda header: compile_alone(compiler, include, header), headers)):
            if message:
                problems.append(f"{name} does not compile alone:\n{message}")
    files = closure(include, MAIN_HEADER)
    lines = sum(len((include / name).read_text(encoding="utf-8").splitlines()) for name in files)
    if not files:
        problems.append(f"{MAIN_HEADER} is missing")
    if len(files) > MAX_CLOSURE_FILES or lines > MAX_CLOSURE_LINES:
        problems.append(f"{MAIN_HEADER} pulls in {len(files)} files with {lines} lines, at most "
                        f"{MAX_CLOSURE_FILES} with {MAX_CLOSURE_LINES} allowed")
    print(f"closure of {MAIN_HEADER}: {len(files)} files, {lines} lines")
    return problems, len(headers)


def main():
    parser = argparse.ArgumentParser(description="Checks the public headers.")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parents[1])
    parser.add_argument("--compiler", default="c++")
    args = parser.parse_args()
    problems, n_headers = check(args.root, args.compiler)
    for problem in problems:
        print(problem)
    print(f"headers: {n_headers} headers, {len(problems)} problems")
    sys.exit(bool(problems) or n_headers == 0)


if __name__ == "__main__":
    main()
