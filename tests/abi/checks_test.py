"""Shows that each check of tools/ fails on a planted violation and passes without it.

    python3 tests/abi/checks_test.py [--compiler c++]
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).parents[2] / "tools"
COMPILER = os.environ.get("CXX", "c++")

TABLE = """
| layer | module | what it does | may include | third-party headers |
|---|---|---|---|---|
| 0 | base | ids | std | none |
| 1 | kernels | loops | base | Highway |
| 2 | attention | softmax | 0-1 | none |
"""
SOURCE = """// What it is.
// What it computes.
// What it costs.
"""


def run(script, *args):
    """(exit code, output) of one of our checks."""
    command = [sys.executable, str(TOOLS / script), *map(str, args)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.returncode, result.stdout + result.stderr


class CheckTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name in ("include/volvelle/base", "src/base", "src/kernels", "apps", "tests", "bench"):
            (self.root / name).mkdir(parents=True)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def assert_passes(self, script, *args):
        code, output = run(script, *args)
        self.assertEqual(code, 0, output)

    def assert_fails(self, message, script, *args):
        code, output = run(script, *args)
        self.assertEqual(code, 1, output)
        self.assertIn(message, output)


class LayersTest(CheckTest):
    def setUp(self):
        super().setUp()
        self.write("docs/architecture.md", TABLE)
        self.write("include/volvelle/base/ids.hpp", "#include <cstdint>\n")
        self.write("src/attention/attend.cpp", '#include "volvelle/base/ids.hpp"\n'
                                               '#include "kernels/score.hpp"\n')
        self.write("src/kernels/score.cpp", "#include <hwy/highway.h>\n#include <sys/mman.h>\n")
        self.args = ("check_layers.py", "--root", self.root)

    def test_allowed_includes(self):
        self.assert_passes(*self.args)

    def test_upward_include(self):
        self.write("src/kernels/bad.cpp", '#include "volvelle/attention/attend.hpp"\n')
        self.assert_fails("bad.cpp:1: kernels may not include attention", *self.args)

    def test_upward_include_of_a_private_header(self):
        self.write("src/base/bad.cpp", '#include "kernels/score.hpp"\n')
        self.assert_fails("base may not include kernels", *self.args)

    def test_library_in_a_wrong_module(self):
        self.write("src/attention/bad.cpp", "#include <hwy/highway.h>\n")
        self.assert_fails("attention may not use Highway", *self.args)

    def test_engine_outside_its_folder(self):
        for header in ("llama.h", "ggml-backend.h", "gguf.h"):
            self.write("src/attention/bad.cpp", f"#include <{header}>\n")
            self.assert_fails("attention may not use llama.cpp", *self.args)

    def test_library_in_a_public_header(self):
        self.write("include/volvelle/kernels/bad.hpp", "#include <hwy/highway.h>\n")
        self.assert_fails("a public header includes Highway", *self.args)

    def test_private_header_in_a_public_one(self):
        self.write("include/volvelle/attention/bad.hpp", '#include "kernels/score.hpp"\n')
        self.assert_fails("includes the private header", *self.args)

    def test_unknown_library(self):
        self.write("src/base/bad.cpp", "#include <boost/any.hpp>\n")
        self.assert_fails("neither standard nor a library", *self.args)

    def test_unknown_module(self):
        self.write("src/extra/bad.cpp", "#include <vector>\n")
        self.assert_fails("module 'extra' is not in the layer table", *self.args)

    def test_no_table(self):
        self.write("docs/architecture.md", "nothing\n")
        self.assert_fails("no layer table", *self.args)


class HeadersTest(CheckTest):
    def setUp(self):
        super().setUp()
        self.write("include/volvelle/memory/context_memory.hpp",
                   "#pragma once\n#include <vector>\nstruct Rows { std::vector<int> rows; };\n")
        self.args = ("check_headers.py", "--root", self.root, "--compiler", COMPILER)

    def test_complete_header(self):
        self.assert_passes(*self.args)

    def test_header_that_needs_another(self):
        self.write("include/volvelle/base/bad.hpp", "#pragma once\nstd::vector<int> rows();\n")
        self.assert_fails("volvelle/base/bad.hpp does not compile alone", *self.args)

    def test_header_without_guard(self):
        self.write("include/volvelle/base/bad.hpp", "struct Twice {};\n")
        self.assert_fails("volvelle/base/bad.hpp does not compile alone", *self.args)

    def test_closure_with_too_many_files(self):
        names = [f"volvelle/base/part{i}.hpp" for i in range(25)]
        for name in names:
            self.write(f"include/{name}", "#pragma once\n")
        self.write("include/volvelle/memory/context_memory.hpp",
                   "#pragma once\n" + "".join(f'#include "{name}"\n' for name in names))
        self.assert_fails("pulls in 26 files", *self.args)

    def test_closure_with_too_many_lines(self):
        self.write("include/volvelle/base/long.hpp", "#pragma once\n" + "// text\n" * 3000)
        self.write("include/volvelle/memory/context_memory.hpp",
                   '#pragma once\n#include "volvelle/base/long.hpp"\n')
        self.assert_fails("with 3003 lines", *self.args)

    def test_missing_main_header(self):
        (self.root / "include/volvelle/memory/context_memory.hpp").unlink()
        self.write("include/volvelle/base/ids.hpp", "#pragma once\n")
        self.assert_fails("context_memory.hpp is missing", *self.args)


class SymbolsTest(CheckTest):
    def archive(self, code):
        source = self.write("src/part.cpp", code)
        command = [COMPILER, "-std=c++20", "-O2", "-c", source, "-o", self.root / "part.o"]
        subprocess.run(command, check=True)
        return self.root / "part.o"

    def test_quiet_code(self):
        quiet = self.archive('#include <cstdio>\n#include <thread>\n#include <vector>\n'
                             'int f(char* out, std::vector<int>& rows) noexcept { rows.at(7) = 1;'
                             ' std::thread t([] {}); t.join();'
                             ' return std::snprintf(out, 9, "%zu", rows.size()); }\n')
        self.assert_passes("check_symbols.py", quiet)

    def test_noisy_code(self):
        for header, statement, what in [
                ("cstdio", 'std::printf("%d", x)', "prints: printf"),
                ("cstdio", 'std::puts("x")', "prints: puts"),
                ("cstdio", 'std::fprintf(stderr, "%d", x)', "prints: "),
                ("iostream", "std::cerr << x", "uses a standard stream"),
                ("cstdlib", "std::abort()", "ends the process: abort"),
                ("cstdlib", "std::exit(x)", "ends the process: exit"),
                ("cstdlib", "std::quick_exit(x)", "ends the process: quick_exit"),
                ("cassert", "assert(x)", "ends the process: __assert")]:
            with self.subTest(statement):
                code = f"#include <{header}>\nvoid f(int x) {{ (void)x; {statement}; }}\n"
                self.assert_fails(what, "check_symbols.py", self.archive(code))

    def test_direct_terminate(self):
        quiet = self.archive("// std::terminate() is not called\nint f() { return 1; }\n"
                             "int g(); int h() { return g(); }\n")
        self.assert_passes("check_symbols.py", "--sources", self.root / "src", quiet)
        direct = self.archive("#include <exception>\nvoid f() { std::terminate(); }\n")
        self.assert_fails("part.cpp:2: calls std::terminate", "check_symbols.py", "--sources",
                          self.root / "src", direct)


class StyleTest(CheckTest):
    def setUp(self):
        super().setUp()
        body = "\n".join(f"int f{i}(int a, int b) {{\n  return a + b;\n}}" for i in range(5))
        self.write("src/base/good.cpp", f"{SOURCE}{body}\n")
        self.write("tests/good_test.cpp", SOURCE + "int x;\n" * 40)
        self.args = ("check_style.py", "--root", self.root)

    def plant(self, text):
        self.write("src/base/bad.cpp", text)

    def test_good_files(self):
        self.assert_passes(*self.args)

    def test_long_file(self):
        self.plant(SOURCE + "int x;\n" * 700)
        self.assert_fails("703 lines, at most 700 allowed", *self.args)

    def test_long_line(self):
        self.plant(SOURCE + "// " + "x" * 98 + "\n")
        self.assert_fails("bad.cpp:4: 101 columns", *self.args)

    def test_tab(self):
        self.plant(SOURCE + "int x;\t\n")
        self.assert_fails("bad.cpp:4: a tab", *self.args)

    def test_unfinished_work(self):
        self.plant(SOURCE + "// TO" + "DO: later\n")
        self.assert_fails("unfinished work", *self.args)

    def test_no_opening_comment(self):
        self.plant("int x;\n")
        self.assert_fails("does not open with a comment", *self.args)

    def test_long_function(self):
        self.plant(SOURCE + "int Type::f(int a) const noexcept {\n" + "  ++a;\n" * 60 + "}\n")
        self.assert_fails("bad.cpp:4: Type::f has 62 lines, limit 60", *self.args)

    def test_long_constructor(self):
        self.plant(SOURCE + "Type::Type(int a) : a_{a}, b_(a) {\n" + "  ++a_;\n" * 60 + "}\n")
        self.assert_fails("bad.cpp:4: Type::Type has 62 lines", *self.args)

    def test_kernels_may_be_longer(self):
        def kernel(n_lines):
            short = "int g() {\n  return 1;\n}\n" * 30
            text = f"{SOURCE}{short}int f(int a) {{\n" + "  ++a;\n" * (n_lines - 2) + "}\n"
            self.write("src/kernels/score-inl.h", text)

        self.write("tests/more_test.cpp", SOURCE + "int x;\n" * 400)
        kernel(120)
        self.assert_passes(*self.args)
        kernel(121)
        self.assert_fails("f has 121 lines, limit 120", *self.args)

    def test_long_functions_on_the_whole(self):
        functions = "\n".join(f"int g{i}(int a) {{\n" + "  ++a;\n" * 40 + "}" for i in range(8))
        self.plant(f"{SOURCE}{functions}\n")
        self.assert_fails("mean function: ", *self.args)

    def test_many_parameters(self):
        self.plant(SOURCE + "void f(std::pair<int, int> a, int b, int c, int d, int e, int g);\n")
        self.assert_passes(*self.args)
        self.plant(SOURCE + "void f(int a, int b, int c, int d, int e, int g, int h = {});\n")
        self.assert_fails("f has 7 parameters", *self.args)

    def test_many_virtual_methods(self):
        methods = "".join(f"  virtual void m{i}() = 0;\n" for i in range(7))
        self.plant(f"{SOURCE}class Wide {{\n public:\n  virtual ~Wide();\n{methods}}};\n")
        self.assert_fails("Wide has 7 virtual methods", *self.args)

    def test_many_options(self):
        self.write("CMakeLists.txt", 'option(X "x" ON)\n' * 15)
        self.assert_fails("build options: 15", *self.args)

    def test_few_tests(self):
        (self.root / "tests/good_test.cpp").unlink()
        self.assert_fails("test lines per library line: 0, >= 0.6", *self.args)

    def test_braces_in_literals_and_comments(self):
        self.plant(SOURCE + "int f(int a) {\n  const char c = '{';  // {\n  const char* s = \"{\";\n"
                   "  return a + R\"x({{)x\"[0] + 1'000 + c + s[0];\n}\n"
                   "int g(int a) {\n  return a;\n}\n" + "int x;\n" * 70)
        self.write("tests/more_test.cpp", SOURCE + "int x;\n" * 40)
        self.assert_passes(*self.args)


if __name__ == "__main__":
    unittest.main()
