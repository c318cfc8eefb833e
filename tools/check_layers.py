#!/usr/bin/env python3
"""Checks every #include of include/, src/ and apps/ against the layer table of docs/architecture.md.

A module may include itself and what its row allows: modules by name, or a range of layers such as
0-3; third-party headers only where the row names their library. Public headers include nothing but
the standard library and each other. So layers point one way, and engine types stay in one folder.
"""
import argparse
import pathlib
import re
import sys

from cpp_source import source_files

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)
# Which headers belong to which library of the table's last column.
LIBRARIES = {
    "llama.cpp": r"(llama|ggml|gguf)[\w-]*\.h",
    "Highway": r"hwy/",
    "Eigen": r"Eigen/",
    "nlohmann-json": r"nlohmann/",
    "xxHash": r"xxhash\.h",
    "CLI11": r"CLI/",
    "fmt": r"fmt/",
}
STANDARD = re.compile(r"[a-z_0-9]+$")  # <vector>, <cstdint>
PLATFORM = re.compile(
    r"(sys|linux)/\w+\.h$|(dlfcn|unistd|fcntl|poll|signal|sched|pthread|time|errno|termios)\.h$"
)


def parse_table(text):
    """Rows {module: (layer, allowed modules, allowed libraries)} of the table in the document."""
    cells = [[cell.strip(" `") for cell in line.strip("| \n").split("|")]
             for line in text.splitlines() if line.startswith("|")]
    rows = [row for row in cells if len(row) == 5 and row[0].isdigit()]
    layers = {module.strip(" `"): int(row[0]) for row in rows for module in row[1].split(",")}
    table = {}
    for row in rows:
        allowed, libraries = set(), set()
        for name in filter(None, (part.strip(" `") for part in row[3].split(","))):
            span = re.fullmatch(r"(\d+)-(\d+)", name)
            if span:
                low, high = map(int, span.groups())
                allowed |= {module for module, layer in layers.items() if low <= layer <= high}
            elif name in layers:
                allowed.add(name)
            elif name not in ("std", "all"):
                raise ValueError(f"the layer table allows '{name}', which is no module of it")
        for name in filter(None, (part.strip(" `") for part in row[4].split(","))):
            if name != "none":
                libraries.add(name)
        for module in row[1].split(","):
            table[module.strip(" `")] = (int(row[0]), allowed, libraries)
    return table


def module_of(path, root):
    parts = path.relative_to(root).parts
    if parts[0] == "include":
        return parts[2] if len(parts) > 3 else None
    return "apps" if parts[0] == "apps" else parts[1]


def included_module(kind, name, modules):
    """The module of one of our own headers, or None."""
    parts = name.split("/")
    if parts[0] == "volvelle" and len(parts) > 2:
        return parts[1]
    return parts[0] if kind == '"' and len(parts) > 1 and parts[0] in modules else None


def library_of(name):
    return next((lib for lib, pattern in LIBRARIES.items() if re.match(pattern, name)), None)


def check_include(kind, name, module, is_public, table):
    """What is wrong with one include, or None."""
    _, allowed, libraries = table[module]
    target = included_module(kind, name, table)
    if target is not None:
        if is_public and not name.startswith("volvelle/"):
            return f"a public header includes the private header '{name}'"
        if target not in table:
            return f"'{name}' belongs to no module of the layer table"
        if target == module or target in allowed:
            return None
        return f"{module} may not include {target} ('{name}')"
    library = library_of(name)
    if library:
        if is_public:
            return f"a public header includes {library} ('{name}')"
        return None if library in libraries else f"{module} may not use {library} ('{name}')"
    if kind == '"':
        return None if not is_public else f"include '{name}' by its full name volvelle/..."
    if STANDARD.match(name):
        return None
    if PLATFORM.match(name) and not is_public:
        return None
    return f"'<{name}>' is neither standard nor a library of the layer table"


def check(root):
    table = parse_table((root / "docs/architecture.md").read_text(encoding="utf-8"))
    if not table:
        return ["docs/architecture.md: no layer table found"], 0
    problems, n_includes = [], 0
    for path in source_files(root, ["include", "src", "apps"]):
        module, place = module_of(path, root), path.relative_to(root)
        if module not in table:
            problems.append(f"{place}: module '{module}' is not in the layer table")
            continue
        text = path.read_text(encoding="utf-8")
        for match in INCLUDE.finditer(text):
            n_includes += 1
            problem = check_include(*match.groups(), module, place.parts[0] == "include", table)
            if problem:
                line = text.count("\n", 0, match.start()) + 1
                problems.append(f"{place}:{line}: {problem}")
    return problems, n_includes


def main():
    parser = argparse.ArgumentParser(description="Checks includes against the layer table.")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parents[1])
    problems, n_includes = check(parser.parse_args().root)
    for problem in problems:
        print(problem)
    print(f"layers: {n_includes} includes, {len(problems)} problems")
    sys.exit(bool(problems) or n_includes == 0)


if __name__ == "__main__":
    main()
