// Parser of memory specs.
//
//   spec     := term { '+' term }
//   term     := name | name '(' argument { ',' argument } ')' | name '=' word
//   argument := word | name '=' word | name '=' '"' path '"'          inside a path, \" and
//   \\ stand for " and \ .
//
// Two steps: the text is split into terms, then each term is read by the function that knows it.
// Spaces between tokens are skipped. Every error names the term or key and lists what is known.
// Cost: linear in the text.
#include <algorithm>
#include <charconv>

#include "base/result_macros.hpp"
#include "memory/memory_spec_check.hpp"

namespace volvelle {
namespace {

using memory_spec_detail::join;
using memory_spec_detail::spec_error;

struct Argument {
  std::string key;  // empty: positional
  std::string value;
  bool quoted = false;
};

struct Term {
  std::string name;
  std::vector<Argument> arguments;  // of name(...)
  bool parenthesised = false;
  std::optional<std::string> assigned;  // of name=...
};

std::string quote(std::string_view text) {
  std::string out(1, '\'');
  out.append(text);
  return out += '\'';
}

class Splitter {
 public:
  explicit Splitter(std::string_view text) : text_(text) {}

  Result<std::vector<Term>> terms() {
    std::vector<Term> out;
    do {
      VOLVELLE_ASSIGN_OR_RETURN(Term parsed, term());
      out.push_back(std::move(parsed));
    } while (accept('+'));
    if (!at_end()) return unexpected("'+' or the end");
    return out;
  }

 private:
  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool at_end() {
    skip_spaces();
    return at_ == text_.size();
  }
  bool accept(char c) {
    if (at_end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  Error unexpected(std::string_view wanted) {
    const std::string found = at_end() ? "the end" : quote(text_.substr(at_, 1));
    return spec_error("expected " + std::string(wanted) + " at character " +
                      std::to_string(at_ + 1) + " of " + quote(text_) + ", got " + found);
  }
  // A run of characters that are none of the grammar's own.
  std::string word() {
    skip_spaces();
    const std::size_t end = std::min(text_.find_first_of("()+,=\" ", at_), text_.size());
    std::string out(text_.substr(at_, end - at_));
    at_ = end;
    return out;
  }

  Result<Term> term() {
    Term out;
    out.name = word();
    if (out.name.empty()) return unexpected("a term");
    if (accept('=')) {
      out.assigned = word();
      if (out.assigned->empty()) return unexpected("a value");
      return out;
    }
    if (!accept('(')) return out;
    out.parenthesised = true;
    do {
      VOLVELLE_ASSIGN_OR_RETURN(Argument parsed, argument());
      out.arguments.push_back(std::move(parsed));
    } while (accept(','));
    if (!accept(')')) return unexpected("',' or ')'");
    return out;
  }

  Result<Argument> argument() {
    Argument out;
    out.value = word();
    if (out.value.empty()) return unexpected("an argument");
    if (!accept('=')) return out;
    out.key = std::move(out.value);
    if (accept('"')) return quoted_argument(std::move(out));
    out.value = word();
    if (out.value.empty()) return unexpected("a value");
    return out;
  }

  Result<Argument> quoted_argument(Argument out) {
    out.quoted = true;
    out.value.clear();
    for (; at_ < text_.size(); ++at_) {
      char c = text_[at_];
      if (c == '"') {
        ++at_;
        return out;
      }
      if (c == '\\') {
        if (at_ + 1 == text_.size()) break;
        c = text_[++at_];
        if (c != '"' && c != '\\') return unexpected("'\"' or '\\' after '\\'");
      }
      out.value += c;
    }
    return unexpected("a closing '\"'");
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

// Checks the form of term(...): `n_positional` plain arguments first, then keys out of `keys`, each
// once.
Status check_arguments(const Term& term, std::size_t n_positional,
                       std::initializer_list<std::string_view> keys) {
  if (!term.parenthesised) return spec_error("term " + quote(term.name) + " needs (...)");
  std::size_t n_plain = 0;
  for (std::size_t i = 0; i < term.arguments.size(); ++i) {
    const Argument& argument = term.arguments[i];
    if (argument.key.empty()) {
      ++n_plain;
      if (n_plain > n_positional || i + 1 != n_plain) {
        return spec_error("unexpected argument " + quote(argument.value) + " of term " +
                          quote(term.name) + "; known keys: " + join(keys));
      }
      continue;
    }
    if (std::find(keys.begin(), keys.end(), argument.key) == keys.end()) {
      return spec_error("unknown key " + quote(argument.key) + " of term " + quote(term.name) +
                        "; known keys: " + (keys.size() == 0 ? "none" : join(keys)));
    }
    const auto same_key = [&](const Argument& other) { return other.key == argument.key; };
    if (std::count_if(term.arguments.begin(), term.arguments.end(), same_key) > 1) {
      return spec_error("key " + quote(argument.key) + " of term " + quote(term.name) +
                        " is given twice");
    }
    if (argument.quoted != (argument.key == "disk")) {
      return spec_error("the value of " + quote(argument.key) +
                        (argument.quoted ? " takes no quotes" : " is a path and needs quotes"));
    }
  }
  if (n_plain == n_positional) return {};
  return spec_error("term " + quote(term.name) + " needs " + std::to_string(n_positional) +
                    " argument before its keys");
}

const Argument* find(const Term& term, std::string_view key) {
  for (const Argument& argument : term.arguments) {
    if (argument.key == key) return &argument;
  }
  return nullptr;
}

template <class Number>
Result<Number> parse_number(std::string_view what, std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc{} && end == text.data() + text.size()) return value;
  const char* kind = std::is_integral_v<Number> ? "an integer" : "a number";
  return spec_error(std::string(what) + " must be " + kind +
                    (error == std::errc::result_out_of_range ? " in range, got " : ", got ") +
                    quote(text));
}

// Reads the value of `key`, if it is there, into `out`.
template <class Number>
Status read_number(const Term& term, std::string_view key, std::optional<Number>& out) {
  const Argument* argument = find(term, key);
  if (argument == nullptr) return {};
  VOLVELLE_ASSIGN_OR_RETURN(
      out, parse_number<Number>(std::string(key) + " of " + term.name, argument->value));
  return {};
}

void read_name(const Term& term, std::string_view key, std::string& out) {
  if (const Argument* argument = find(term, key)) out = argument->value;
}

Status read_full(const Term& term, MemorySpec& spec) {
  if (term.parenthesised) return spec_error("term 'full' takes no arguments");
  spec.full = true;
  return {};
}

Status read_sink(const Term& term, MemorySpec& spec) {
  VOLVELLE_RETURN_IF_ERROR(check_arguments(term, 1, {}));
  VOLVELLE_ASSIGN_OR_RETURN(spec.sink,
                            parse_number<std::int64_t>("n of sink(n)", term.arguments[0].value));
  return {};
}

Status read_window(const Term& term, MemorySpec& spec) {
  VOLVELLE_RETURN_IF_ERROR(check_arguments(term, 1, {"block"}));
  WindowTerm window;
  VOLVELLE_ASSIGN_OR_RETURN(window.tokens,
                            parse_number<std::int64_t>("n of window(n)", term.arguments[0].value));
  std::optional<std::int64_t> block;
  VOLVELLE_RETURN_IF_ERROR(read_number(term, "block", block));
  window.block = block.value_or(window.block);
  spec.window = window;
  return {};
}

Status read_topk(const Term& term, MemorySpec& spec) {
  VOLVELLE_RETURN_IF_ERROR(check_arguments(
      term, 0, {"k", "max_error", "index", "bits", "rank", "min", "tail", "cert", "anchor"}));
  TopkTerm topk;
  VOLVELLE_RETURN_IF_ERROR(read_number(term, "k", topk.k));
  VOLVELLE_RETURN_IF_ERROR(read_number(term, "max_error", topk.max_error));
  VOLVELLE_RETURN_IF_ERROR(read_number(term, "bits", topk.bits));
  VOLVELLE_RETURN_IF_ERROR(read_number(term, "rank", topk.rank));
  VOLVELLE_RETURN_IF_ERROR(read_number(term, "min", topk.min));
  read_name(term, "index", topk.index);
  read_name(term, "tail", topk.tail);
  read_name(term, "cert", topk.cert);
  read_name(term, "anchor", topk.anchor);
  spec.topk = std::move(topk);
  return {};
}

Status read_tail(const Term& term, MemorySpec& spec) {
  VOLVELLE_RETURN_IF_ERROR(check_arguments(term, 1, {"entries"}));
  TailTerm tail;
  tail.kind = term.arguments[0].value;
  VOLVELLE_RETURN_IF_ERROR(read_number(term, "entries", tail.entries));
  spec.tail = std::move(tail);
  return {};
}

Status read_store(const Term& term, MemorySpec& spec) {
  const Argument* disk = find(term, "disk");
  VOLVELLE_RETURN_IF_ERROR(check_arguments(term, disk == nullptr ? 1 : 0, {"disk"}));
  spec.store =
      disk == nullptr ? StoreTerm{term.arguments[0].value, ""} : StoreTerm{"disk", disk->value};
  // 'disk' is a kind only together with its path.
  if (disk == nullptr && spec.store->kind == "disk") {
    return spec_error("store needs disk=\"PATH\" or mpi");
  }
  return {};
}

Status read_swa(const Term& term, MemorySpec& spec) {
  VOLVELLE_RETURN_IF_ERROR(check_arguments(term, 1, {}));
  if (term.arguments[0].value != "full") {
    return spec_error("unknown argument " + quote(term.arguments[0].value) +
                      " of term 'swa'; known: full");
  }
  spec.swa_full = true;
  return {};
}

Status read_kv(const Term& term, MemorySpec& spec) {
  VOLVELLE_RETURN_IF_ERROR(check_arguments(term, 0, {"k", "v"}));
  KvTerm kv;
  read_name(term, "k", kv.k);
  read_name(term, "v", kv.v);
  spec.kv = std::move(kv);
  return {};
}

Status read_dense_layers(const Term& term, MemorySpec& spec) {
  const std::string text = term.assigned.value_or("");
  const std::size_t dash = text.find('-');
  if (dash == std::string::npos) {
    return spec_error("dense_layers needs a range of layers such as dense_layers=0-1");
  }
  LayerRange range;
  VOLVELLE_ASSIGN_OR_RETURN(
      range.first, parse_number<std::int64_t>("first layer of dense_layers", text.substr(0, dash)));
  VOLVELLE_ASSIGN_OR_RETURN(
      range.last, parse_number<std::int64_t>("last layer of dense_layers", text.substr(dash + 1)));
  spec.dense_layers = range;
  return {};
}

struct KnownTerm {
  std::string_view name;
  std::string_view form;
  Status (*read)(const Term&, MemorySpec&);
};
constexpr std::array<KnownTerm, 9> kTerms = {{
    {"full", "full", read_full},
    {"sink", "sink(n)", read_sink},
    {"window", "window(n[,block=B])", read_window},
    {"topk", "topk(...)", read_topk},
    {"tail", "tail(kind[,entries=n])", read_tail},
    {"store", "store(disk=\"PATH\"|mpi)", read_store},
    {"swa", "swa(full)", read_swa},
    {"kv", "kv(k=TYPE,v=TYPE)", read_kv},
    {"dense_layers", "dense_layers=a-b", read_dense_layers},
}};

Status read_term(const Term& term, MemorySpec& spec) {
  const auto same_name = [&](const KnownTerm& known) { return known.name == term.name; };
  const auto* known = std::find_if(kTerms.begin(), kTerms.end(), same_name);
  if (known == kTerms.end()) {
    std::vector<std::string_view> forms;
    for (const KnownTerm& k : kTerms) forms.push_back(k.form);
    return spec_error("unknown term " + quote(term.name) + "; known terms: " + join(forms));
  }
  if (term.assigned.has_value() && term.name != "dense_layers") {
    return spec_error("term " + quote(term.name) + " is written " + std::string(known->form));
  }
  return known->read(term, spec);
}

}  // namespace

Result<MemorySpec> parse_memory_spec(std::string_view text) {
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<Term> terms, Splitter(text).terms());
  MemorySpec spec;
  for (auto term = terms.begin(); term != terms.end(); ++term) {
    const auto same_name = [&](const Term& other) { return other.name == term->name; };
    if (std::any_of(terms.begin(), term, same_name)) {
      return spec_error("term " + quote(term->name) + " is given twice");
    }
    VOLVELLE_RETURN_IF_ERROR(read_term(*term, spec));
  }
  VOLVELLE_RETURN_IF_ERROR(memory_spec_detail::check_consistent(spec));
  return spec;
}

}  // namespace volvelle
