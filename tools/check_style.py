#!/usr/bin/env python3
"""Checks the style gates of docs/hacking.md; prints the numbers whether they hold or not.

Per file: length, columns, tabs, marks of unfinished work, opening comment. Per function: length, parameters. Over the
library: mean, 90th percentile and share of long functions, median file, comment density (reported
only), build options, test lines per library line.
"""
import argparse
import pathlib
import re
import statistics
import sys

import cpp_source

MAX_FILE_LINES, WARN_FILE_LINES, MAX_MEDIAN_FILE = 700, 400, 180
MAX_COLUMNS = 100
MAX_PARAMETERS = 6
MIN_OPENING_COMMENT, GOOD_OPENING_COMMENT = 1, 3
LONG_FUNCTION, MAX_KERNEL_FUNCTION = 60, 120
MAX_MEAN_FUNCTION, MAX_P90_FUNCTION, MAX_LONG_SHARE = 15.0, 36, 0.025
MAX_VIRTUALS, MAX_OPTIONS, MIN_TEST_RATIO = 6, 14, 0.6

LIBRARY = ["include", "src", "apps"]
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
VIRTUAL = re.compile(r"\bvirtual\s+(?!~)")
CLASS = re.compile(r"\b(?:class|struct)\s+(\w+)[^;{()]*\{")


def opening_comment(lines):
    """Number of comment lines at the beginning of a file."""
    n = 0
    while n < len(lines) and lines[n].startswith("//"):
        n += 1
    return n


def check_text(lines):
    """Problems (line, message) of one file that need no understanding of C++."""
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_COLUMNS:
            yield number, f"{len(line)} columns, at most {MAX_COLUMNS} allowed"
        if "\t" in line:
            yield number, "a tab"
        if UNFINISHED.search(line):
            yield number, "unfinished work is marked here"
    if len(lines) > MAX_FILE_LINES:
        yield len(lines), f"{len(lines)} lines, at most {MAX_FILE_LINES} allowed"
    if opening_comment(lines) < MIN_OPENING_COMMENT:
        yield 1, "does not open with a comment that says what the file is"


def check_functions(functions, is_kernel):
    limit = MAX_KERNEL_FUNCTION if is_kernel else LONG_FUNCTION
    for function in functions:
        if function.n_lines > limit:
            yield function.line, f"{function.name} has {function.n_lines} lines, limit {limit}"
        if function.n_parameters > MAX_PARAMETERS:
            yield function.line, (f"{function.name} has {function.n_parameters} parameters, "
                                  f"at most {MAX_PARAMETERS} allowed")


def check_virtuals(text):
    """Virtual methods of each class, its nested classes included."""
    code = cpp_source.code_only(text)
    for match in CLASS.finditer(code):
        depth, at = 1, match.end()
        while depth and at < len(code):
            depth += {"{": 1, "}": -1}.get(code[at], 0)
            at += 1
        n = len(VIRTUAL.findall(code[match.end():at]))
        if n > MAX_VIRTUALS:
            line = code.count("\n", 0, match.start()) + 1
            yield line, f"{match.group(1)} has {n} virtual methods, at most {MAX_VIRTUALS} allowed"


class Survey:
    """Numbers over all library files."""

    def __init__(self):
        self.function_lengths, self.file_lengths = [], []
        self.n_comment = self.n_code = self.n_long = self.n_test = self.n_options = 0
        self.n_brief_openings = 0

    def add_file(self, lines, text, functions, is_kernel):
        comment, code = cpp_source.comment_and_code_lines(text)
        self.n_comment += comment
        self.n_code += code
        self.file_lengths.append(len(lines))
        self.n_brief_openings += opening_comment(lines) < GOOD_OPENING_COMMENT
        lengths = [f.n_lines for f in functions if f.n_lines]
        self.function_lengths += lengths
        self.n_long += 0 if is_kernel else sum(n > LONG_FUNCTION for n in lengths)

    def gates(self):
        """(name, value, limit, whether it holds); empty without functions."""
        lengths = self.function_lengths
        if len(lengths) < 2:
            return
        p90 = statistics.quantiles(lengths, n=10)[-1]
        share = self.n_long / len(lengths)
        median = statistics.median(self.file_lengths)
        library = self.n_comment + self.n_code
        yield "mean function", statistics.mean(lengths), MAX_MEAN_FUNCTION, "<="
        yield "90th percentile of functions", p90, MAX_P90_FUNCTION, "<="
        yield "share of long functions", share, MAX_LONG_SHARE, "<="
        yield "median file", median, MAX_MEDIAN_FILE, "<="
        yield "test lines per library line", self.n_test / library, MIN_TEST_RATIO, ">="
        yield "build options", self.n_options, MAX_OPTIONS, "<="


def check_library(root, survey):
    for path in cpp_source.source_files(root, LIBRARY):
        place, text = path.relative_to(root), path.read_text(encoding="utf-8")
        lines, functions = text.splitlines(), cpp_source.functions(text)
        is_kernel = path.name.endswith("-inl.h")
        survey.add_file(lines, text, functions, is_kernel)
        if len(lines) > WARN_FILE_LINES:
            print(f"warning: {place}: {len(lines)} lines, {WARN_FILE_LINES} are enough")
        for checks in (check_text(lines),
                       check_functions(functions, is_kernel), check_virtuals(text)):
            yield from (f"{place}:{line}: {message}" for line, message in checks)


def check_tests(root, survey):
    for path in cpp_source.source_files(root, ["tests", "bench"]):
        lines = path.read_text(encoding="utf-8").splitlines()
        if path.relative_to(root).parts[0] == "tests":
            survey.n_test += sum(bool(line.strip()) for line in lines)
        for line, message in check_text(lines):
            yield f"{path.relative_to(root)}:{line}: {message}"
    for path in sorted((root / "tests").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        survey.n_test += sum(bool(line.strip()) for line in text.splitlines())


def check(root):
    survey = Survey()
    problems = list(check_library(root, survey)) + list(check_tests(root, survey))
    cmake = root / "CMakeLists.txt"
    if cmake.is_file():
        text = cmake.read_text(encoding="utf-8")
        survey.n_options = len(re.findall(r"^\s*option\(", text, re.MULTILINE))
    for name, value, limit, relation in survey.gates():
        print(f"{name}: {value:.3g} ({relation} {limit})")
        if value > limit if relation == "<=" else value < limit:
            problems.append(f"{name}: {value:.3g}, {relation} {limit} expected")
    total = survey.n_comment + survey.n_code
    print(f"opening comments below {GOOD_OPENING_COMMENT} lines: {survey.n_brief_openings} of "
          f"{len(survey.file_lengths)} files")
    print(f"comments: {survey.n_comment / max(total, 1):.1%} of {total} lines")
    return problems, total


def main():
    parser = argparse.ArgumentParser(description="Checks the style gates.")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parents[1])
    problems, total = check(parser.parse_args().root)
    for problem in problems:
        print(problem)
    print(f"style: {total} lines, {len(problems)} problems")
    sys.exit(bool(problems) or total == 0)


if __name__ == "__main__":
    main()
