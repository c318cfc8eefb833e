"""Sampler flags, stop strings and grammars on the command line: what they do, and what is said about
wrong ones and about those that do nothing."""
import pytest

from conftest import SMOL, WIRED, volvelle

PROMPT = "Once upon a time, there was a"


def run(*flags, n=12, **more):
    return volvelle("run", "-m", SMOL, "-p", PROMPT, "-n", n, "-t", 1, *flags, **more)


@pytest.fixture(scope="module")
def greedy():
    return run("--json").json["text"]


# --- stop strings ----------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--stop", "-r", "--reverse-prompt"])
def test_the_answer_ends_before_a_stop_string(greedy, flag):
    at = len(greedy) // 2
    stop = greedy[at - 2:at + 3]
    found = run(flag, "no such text", flag, stop, "--json").json
    assert found["stop_reason"] == "stop" and found["stop"] == stop
    assert found["text"] == greedy[:greedy.index(stop)]
    assert 0 < found["n_predicted"] <= 12
    assert run(flag, stop).out == found["text"] + "\n"


def test_a_stop_string_is_not_looked_for_in_the_prompt():
    found = run("--stop", "upon a time", "--json").json
    assert found["stop_reason"] == "limit" and found["stop"] is None


def test_escapes_in_stop_strings():
    list_of = ["run", "-m", SMOL, "-p", "Shopping list:\n- milk\n-", "-n", 12, "-t", 1, "--json"]
    whole = volvelle(*list_of).json["text"]
    assert "\n" in whole
    cut = volvelle(*list_of, "--stop", "\\n").json
    assert (cut["stop"], cut["text"]) == ("\n", whole[:whole.index("\n")])


def test_ask_knows_stop_strings_too(facts):
    answer = volvelle("ask", facts[1], "k17", "-t", 1, "--json", "--stop", "42").json
    assert (answer["answer"], answer["stop"], answer["stop_reason"]) == (" v", "42", "stop")


# --- samplers --------------------------------------------------------------------------------


def test_seeds():
    def text(*flags):
        return run("--temp", 1.3, *flags, "--json").json
    first = text("-s", 7)
    assert first["seed"] == 7 and text("-s", 7)["text"] == first["text"]
    assert any(text("-s", seed)["text"] != first["text"] for seed in (8, 9))
    drawn = run("--temp", 1.3, "-s", -1, "--json")
    seed = drawn.json["seed"]
    assert f"seed {seed}" in drawn.err
    assert text("-s", seed)["text"] == drawn.json["text"]
    assert run("--json").json["seed"] is None  # greedy draws nothing


def test_every_flag_reaches_the_sampler(greedy):
    base = ["--temp", 1.5, "-s", 3]
    plain = run(*base).out
    for flags in [["--top-k", 1], ["--top-p", 0.05], ["--min-p", 0.9], ["--typical", 0.05],
                  ["--top-nsigma", 0.1], ["--mirostat", 1, "--mirostat-ent", 0.1],
                  ["--mirostat", 2, "--mirostat-ent", 0.1], ["--dynatemp-range", 1.5],
                  ["--samplers", "temperature"], ["--grammar", "root ::= [0-9]+"],
                  ["--xtc-probability", 1, "--xtc-threshold", 0.01]]:
        assert run(*base, *flags).out != plain, flags
    for flags in [["--repeat-penalty", 3], ["--presence-penalty", 30], ["--frequency-penalty", 30],
                  ["--dry-multiplier", 100, "--dry-allowed-length", 0]]:
        assert run(*flags).out != greedy + "\n", flags


def test_biases_and_ignored_ends():
    base = ["run", "-m", WIRED, "-p", "f00 k17 v42 f01 k17", "-t", 1, "-n", 3, "--json"]
    plain = volvelle(*base).json
    assert (plain["text"].strip(), plain["stop_reason"]) == ("v42", "end")
    assert volvelle(*base, "--ignore-eos").json["n_predicted"] == 3
    # One token wins over everything, and one that won is forbidden.
    favoured = volvelle(*base, "-l", "40+1000", "-l", "41+2000").json["text"]
    assert favoured == 3 * favoured[:len(favoured) // 3] and favoured.strip()
    forbidden = volvelle(*base, "-l", "40+1000", "-l", "40-inf").json["text"]
    assert forbidden == plain["text"]


def test_grammar_from_flag_and_file(tmp_path):
    grammar = 'root ::= " yes" | " no"'
    answer = run("--grammar", grammar, "--json").json
    assert answer["text"] in (" yes", " no") and answer["stop_reason"] == "end"
    (tmp_path / "g.gbnf").write_text(grammar)
    assert run("--grammar-file", tmp_path / "g.gbnf", "--json").json["text"] == answer["text"]


@pytest.mark.parametrize("flags, said", [
    (["--grammar", "root ::= [a"], "unexpected end of input"),
    (["--grammar", "start ::= \"a\""], "root"),
    (["--grammar", "root ::= " + "(" * 100000], "nests"),
    (["--grammar", ""], "empty"),
    (["--grammar", "a", "--grammar-file", "b"], "--grammar-file"),
    (["-l", "999999+1"], "999999"),
    (["-l", "5"], "TOKEN+BIAS"),
    (["-l", "5+"], "TOKEN+BIAS"),
    (["-l", "5--3"], "TOKEN+BIAS"),
    (["-l", "5+inf"], "token 5"),
    (["-l", "x+1"], "TOKEN+BIAS"),
    (["--stop", ""], "--stop"),
    (["--samplers", "top_k;bogus"], "'bogus'"),
    (["--samplers", ""], "min_p"),
    (["--samplers", "top_k;top-k"], "twice"),
    (["--mirostat", 3], "mirostat"),
    (["--repeat-penalty", 0], "repeat-penalty"),
    (["--repeat-penalty", "inf"], "repeat-penalty"),
    (["--repeat-last-n", -1], "repeat-last-n"),
    (["--repeat-last-n", 99999999999], "--repeat-last-n"),
    (["--xtc-threshold", 7], "xtc-threshold"),
    (["--dry-base", 0.1], "dry-base"),
    (["--dry-sequence-breaker", ""], "dry-sequence-breaker"),
    (["--dry-sequence-breaker", "x" * 41], "dry-sequence-breaker"),
    (["--dynatemp-range", -1], "dynatemp-range"),
    (["--top-nsigma", -3], "top-nsigma"),
    (["--adaptive-target", 2], "adaptive-target"),
    (["--adaptive-decay", 1], "adaptive-decay"),
    (["-s", 4294967295], "--seed"),
    (["-s", "1.5"], "--seed"),
])
def test_wrong_sampler_flags_are_usage_errors(flags, said):
    failed = run(*flags, code=2)
    assert said in failed.error and failed.out == ""
    assert len(failed.err.splitlines()) == 1


def test_a_missing_grammar_file_is_named(tmp_path):
    assert "absent.gbnf" in run("--grammar-file", tmp_path / "absent.gbnf", code=1).error


# --- flags that do nothing -------------------------------------------------------------------


@pytest.mark.parametrize("flags, idle, why", [
    (["--top-k", 5], ["--top-k"], "--temp 0"),
    (["-s", 5, "--top-p", 0.5, "--min-p", 0.2, "--top-nsigma", 2],
     ["--seed", "--top-p", "--min-p", "--top-nsigma"], "--temp 0"),
    (["--mirostat", 2], ["--mirostat"], "--temp 0"),
    (["--temp", 1, "--mirostat", 2, "--top-k", 5, "--repeat-penalty", 2, "--samplers", "min_p"],
     ["--top-k", "--repeat-penalty", "--samplers"], "mirostat"),
    (["--temp", 1, "--mirostat-lr", 0.5], ["--mirostat-lr"], "--mirostat is 0"),
    (["--temp", 1, "--samplers", "top_k", "--min-p", 0.1], ["--temp", "--min-p"], "--samplers"),
    (["--dry-base", 2], ["--dry-base"], "--dry-multiplier is 0"),
    (["--dry-multiplier", 2, "--dry-penalty-last-n", 0], ["--dry-multiplier"], "last-n is 0"),
    (["--repeat-last-n", 5], ["--repeat-last-n"], "no penalty"),
    (["--repeat-penalty", 2, "--repeat-last-n", 0], ["--repeat-penalty"], "--repeat-last-n is 0"),
    (["--temp", 1, "--xtc-threshold", 0.2], ["--xtc-threshold"], "--xtc-probability is 0"),
    (["--temp", 1, "--xtc-probability", 1, "--xtc-threshold", 0.6], ["--xtc-probability"], "0.5"),
    (["--temp", 1, "--dynatemp-exp", 2], ["--dynatemp-exp"], "--dynatemp-range is 0"),
    (["--temp", 1, "--adaptive-target", 0.5], ["--adaptive-target"], "adaptive_p"),
])
def test_flags_without_effect_are_warned_of(flags, idle, why):
    lines = [line for line in run(*flags, n=1).err.splitlines() if "without effect" in line]
    line = next(line for line in lines if why in line)
    assert "warning" in line
    for flag in idle:
        assert flag in line.split("without effect")[0]


@pytest.mark.parametrize("flags", [
    [], ["--temp", 1, "-s", 3, "--top-k", 5, "--top-p", 0.5], ["--repeat-penalty", 1.1],
    ["--typical", 0.5, "--top-k", 9], ["--xtc-probability", 0.5, "-s", 3], ["--ignore-eos"],
    ["--temp", 1, "--mirostat", 2, "--mirostat-ent", 3, "-s", 3],
    ["--temp", 1, "--samplers", "adaptive_p;temp", "--adaptive-target", 0.5, "-s", 3],
    ["--dynatemp-range", 0.5, "--dynatemp-exp", 2, "-s", 3],
])
def test_flags_with_an_effect_are_not(flags):
    assert "warning" not in run(*flags, n=1).err
