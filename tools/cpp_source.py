"""A small reader of C++ sources for the checks of this folder: comments, functions, parameters.

Not a parser: it blanks comments, strings and preprocessor lines, then follows braces and
parentheses. That is enough because all sources are formatted by clang-format; what it can not
tell apart (a lambda stored at namespace scope) it counts as a function.
"""
import dataclasses
import re

SUFFIXES = {".hpp", ".cpp", ".h", ".cc"}

TOKEN = re.compile(
    r'R"(?P<tag>[^()\\\s]{0,16})\(.*?\)(?P=tag)"'  # raw string
    r'|//[^\n]*|/\*.*?\*/'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'",  # not the digit separator of 1'000
    re.DOTALL)
PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
SCOPE_HEAD = re.compile(r"^\s*(template\s*<.*>\s*)?(inline\s+|typedef\s+)?"
                        r"(namespace|class|struct|union|enum|extern)\b", re.DOTALL)
ACCESS = re.compile(r"\b(public|private|protected)\s*:(?!:)")
CALLABLE = re.compile(r"(operator\s*(?:\(\)|[^\s(]+)|[~\w:]+)\s*\(")
NOT_CALLABLE = {"decltype", "alignas", "noexcept", "requires", "explicit", "static_assert",
                "__attribute__", "sizeof", "void"}
CONSTRUCTOR_INIT = re.compile(r"\)\s*(noexcept\s*)?:(?!:)")


@dataclasses.dataclass
class Function:
    name: str
    line: int          # of the signature
    n_lines: int       # signature to closing brace; 0 for a declaration
    n_parameters: int


def blank(match):
    return re.sub(r"[^\n]", " ", match.group())


def without_comments(text):
    """The same lines with comments and the contents of literals blanked."""
    return TOKEN.sub(blank, text)


def code_only(text):
    """As without_comments, and without preprocessor lines."""
    return PREPROCESSOR.sub(blank, without_comments(text))


def comment_and_code_lines(text):
    """Numbers of lines that hold only a comment, and of lines that hold code."""
    n_comment = n_code = 0
    for original, stripped in zip(text.splitlines(), without_comments(text).splitlines()):
        if original.strip():
            is_code = stripped.strip() or original.lstrip()[0] not in "/*"
            n_code += bool(is_code)
            n_comment += not is_code
    return n_comment, n_code


def count_parameters(text):
    """Parameters between the parenthesis at the beginning of `text` and its partner."""
    depth, angle, n_commas, content = 0, 0, 0, ""
    for character in text:
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth == 0:
                break
        elif character in "<>":
            angle += 1 if character == "<" else -1
        elif character == "," and depth == 1 and angle <= 0:
            n_commas += 1
        content += character
    return 0 if content[1:].strip() in ("", "void") else n_commas + 1


def signature(head):
    """(name, number of parameters, offset in head) of the function that `head` declares, or None."""
    for match in CALLABLE.finditer(head):
        name = match.group(1).strip(":")
        if name and name not in NOT_CALLABLE and not name[0].isdigit():
            return name, count_parameters(head[match.end() - 1:]), match.start()
    return None


def opens_function(head):
    last = head.rstrip()[-1:]
    if "(" not in head or last == "=" or re.search(r"\bconcept\b", head):
        return False
    return signature(head) is not None


class FunctionFinder:
    """One pass over the code; `scopes` holds 'outer' (namespace, class), 'function' or 'other'."""

    def __init__(self, text):
        self.code = code_only(text)
        self.found = []
        self.scopes = []
        self.open_functions = []
        self.head_begin = 0
        self.parentheses = 0

    def line_at(self, offset):
        return self.code.count("\n", 0, offset) + 1

    def in_outer_scope(self):
        return not self.scopes or self.scopes[-1] == "outer"

    def run(self):
        for at, character in enumerate(self.code):
            if character == "(":
                self.parentheses += 1
            elif character == ")":
                self.parentheses -= 1
            elif character == "{":
                self.open_brace(at)
            elif character == "}":
                self.close_brace(at)
            elif character == ";" and self.in_outer_scope() and self.parentheses == 0:
                self.declaration(at)
        return self.found

    def head(self, at):
        text = self.code[self.head_begin:at]
        return ACCESS.sub(blank, text)

    def open_brace(self, at):
        if not self.in_outer_scope() or self.parentheses > 0:
            self.scopes.append("other")
            return
        head = self.head(at)
        is_member_init = CONSTRUCTOR_INIT.search(head) and re.search(r"[\w>]\s*$", head)
        if SCOPE_HEAD.match(head) and not re.search(r"\)\s*(const|noexcept|\s)*$", head):
            self.scopes.append("outer")
            self.head_begin = at + 1
        elif is_member_init or not opens_function(head):
            self.scopes.append("other")
        else:
            name, n_parameters, offset = signature(head)
            line = self.line_at(self.head_begin + offset)
            self.open_functions.append(Function(name, line, 0, n_parameters))
            self.scopes.append("function")

    def close_brace(self, at):
        if not self.scopes:
            return
        scope = self.scopes.pop()
        if scope == "function":
            function = self.open_functions.pop()
            function.n_lines = self.line_at(at) - function.line + 1
            self.found.append(function)
        if scope != "other":
            self.head_begin = at + 1

    def declaration(self, at):
        head = self.head(at)
        found = signature(head)
        if found and "=" not in head[:found[2]]:
            line = self.line_at(self.head_begin + found[2])
            self.found.append(Function(found[0], line, 0, found[1]))
        self.head_begin = at + 1


def functions(text):
    """Functions defined (n_lines > 0) or declared (n_lines == 0) outside of other functions."""
    return FunctionFinder(text).run()


def source_files(root, folders):
    """C++ files below the named folders, in a fixed order."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                yield path
