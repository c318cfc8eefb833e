#!/usr/bin/env python3
"""Checks that our libraries can not print, abort or exit: what their objects ask the linker for.

    check_symbols.py --sources src libvolvelle_base.a libvolvelle_io.a ...

Meant for release objects, where assert is gone.

What stays allowed, and why:
  std::terminate     referenced by what is inlined from std::thread and by what compilers emit for
                     noexcept; that no source of ours names it is checked with --sources
  __cxa_*, _Unwind*  exceptions of the C++ runtime; std::__throw_* are ordinary exceptions
  snprintf, fwrite   write to memory or to a file that was opened; stdout and stderr are not allowed
"""
import argparse
import pathlib
import re
import subprocess
import sys

import cpp_source

FORBIDDEN = {
    "prints": r"_?(puts|putchar|printf|vprintf|perror|psignal|stdout|stderr)|__(v?printf)_chk"
              r"|v?fprintf|__v?fprintf_chk|fputs|fputc|syslog",
    "uses a standard stream": r"_ZSt[34](w?cout|w?cerr|w?clog)|_ZNSt8ios_base4InitC[12]Ev",
    "ends the process": r"abort|_?exit|_Exit|quick_exit|raise|kill|__assert_fail|__assert"
                        r"|__assert_perror_fail|_ZN3hwy5AbortEPKciS1_z|ggml_abort",
}
ALLOWED = re.compile(r"_ZSt9terminatev|__cxa_\w+|_Unwind\w+|_ZSt\d+__throw\w+")


def undefined_symbols(archive, nm):
    """Yields (object, symbol) for every undefined symbol of an archive or object."""
    output = subprocess.run([nm, "-A", "-u", "--format=posix", archive], capture_output=True,
                            text=True, check=True).stdout
    for line in output.splitlines():
        place, symbol = line.split(": ", 1)
        yield place, symbol.split()[0].split("@")[0]


def direct_terminates(folder):
    """Yields the places in sources that name std::terminate outside of comments and strings."""
    for path in cpp_source.source_files(folder, ["."]):
        code = cpp_source.without_comments(path.read_text(encoding="utf-8"))
        for match in re.finditer(r"\b(std::(set_)?terminate|terminate\s*\()", code):
            line = code.count("\n", 0, match.start()) + 1
            yield f"{path}:{line}: calls std::terminate"


def verdict(symbol):
    if ALLOWED.fullmatch(symbol):
        return None
    return next((what for what, names in FORBIDDEN.items() if re.fullmatch(names, symbol)), None)


def main():
    parser = argparse.ArgumentParser(description="Checks undefined symbols of our libraries.")
    parser.add_argument("archives", nargs="+")
    parser.add_argument("--nm", default="nm")
    parser.add_argument("--sources", type=pathlib.Path)
    args = parser.parse_args()
    n_symbols, problems = 0, list(direct_terminates(args.sources)) if args.sources else []
    for archive in args.archives:
        for place, symbol in undefined_symbols(archive, args.nm):
            n_symbols += 1
            what = verdict(symbol)
            if what:
                problems.append(f"{place}: {what}: {symbol}")
    for problem in problems:
        print(problem)
    print(f"symbols: {n_symbols} undefined symbols of {len(args.archives)} archives, "
          f"{len(problems)} problems")
    sys.exit(bool(problems) or n_symbols == 0)


if __name__ == "__main__":
    main()
