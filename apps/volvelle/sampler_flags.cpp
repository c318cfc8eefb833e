// Declaring sampler flags, reading the ones that are more than a number, and finding those that
// other flags make useless (why_unused() is the list of reasons).
#include "sampler_flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <random>

#include "base/result_macros.hpp"
#include "options.hpp"
#include "std_streams.hpp"
#include "text_input.hpp"
#include "volvelle/io/atomic_file.hpp"
#include "volvelle/runtime/model.hpp"

namespace volvelle::cli {

namespace {

constexpr std::int64_t kLargestSeed = 0xFFFFFFFE;  // the next one means "random" to the engine

// The step of the chain that a flag belongs to.
struct FlagOfStep {
  const char* flag;
  SamplerStep step;
};
constexpr std::array<FlagOfStep, 21> kFlagsOfSteps{{
    {"--repeat-last-n", SamplerStep::kPenalties},
    {"--repeat-penalty", SamplerStep::kPenalties},
    {"--presence-penalty", SamplerStep::kPenalties},
    {"--frequency-penalty", SamplerStep::kPenalties},
    {"--dry-multiplier", SamplerStep::kDry},
    {"--dry-base", SamplerStep::kDry},
    {"--dry-allowed-length", SamplerStep::kDry},
    {"--dry-penalty-last-n", SamplerStep::kDry},
    {"--dry-sequence-breaker", SamplerStep::kDry},
    {"--top-nsigma", SamplerStep::kTopNSigma},
    {"--top-k", SamplerStep::kTopK},
    {"--typical", SamplerStep::kTypical},
    {"--top-p", SamplerStep::kTopP},
    {"--min-p", SamplerStep::kMinP},
    {"--xtc-probability", SamplerStep::kXtc},
    {"--xtc-threshold", SamplerStep::kXtc},
    {"--temp", SamplerStep::kTemperature},
    {"--dynatemp-range", SamplerStep::kTemperature},
    {"--dynatemp-exp", SamplerStep::kTemperature},
    {"--adaptive-target", SamplerStep::kAdaptiveP},
    {"--adaptive-decay", SamplerStep::kAdaptiveP},
}};

std::optional<SamplerStep> step_of(const std::string& flag) {
  for (const auto& [name, step] : kFlagsOfSteps) {
    if (flag == name) return step;
  }
  return std::nullopt;
}

bool in_order(const SamplerOptions& o, SamplerStep step) {
  return std::find(o.order.begin(), o.order.end(), step) != o.order.end();
}

// Steps that can drop the best token, so that truncation matters even without a draw.
bool can_drop_best(const SamplerOptions& o) {
  const bool typical = o.typical_p < 1 && in_order(o, SamplerStep::kTypical);
  const bool xtc =
      o.xtc_probability > 0 && o.xtc_threshold <= 0.5f && in_order(o, SamplerStep::kXtc);
  return o.mirostat == 0 && (typical || xtc);
}

bool is_truncation(SamplerStep step) {
  return step == SamplerStep::kTopNSigma || step == SamplerStep::kTopK ||
         step == SamplerStep::kTopP || step == SamplerStep::kMinP;
}

const char* why_useless_when_greedy(const std::string& flag, const SamplerOptions& o) {
  constexpr const char* kWhy = "with --temp 0 the best token is always taken";
  const auto step = step_of(flag);
  const bool draws = flag == "--seed" || flag.starts_with("--mirostat") ||
                     step == SamplerStep::kAdaptiveP || flag == "--dynatemp-exp";
  if (draws && !(flag == "--seed" && used_seed(o))) return kWhy;
  return step && is_truncation(*step) && !can_drop_best(o) ? kWhy : nullptr;
}

// A flag that only refines another one that is off.
const char* why_off(const std::string& flag, const SamplerOptions& o) {
  const auto step = step_of(flag);
  const bool penalty = o.repeat_penalty != 1 || o.presence_penalty != 0 || o.frequency_penalty != 0;
  if (flag == "--repeat-last-n" && !penalty) return "no penalty is set";
  if (step == SamplerStep::kPenalties && flag != "--repeat-last-n" && o.repeat_last_n == 0)
    return "--repeat-last-n is 0";
  const bool dry = o.dry_multiplier > 0;
  if (step == SamplerStep::kDry && flag != "--dry-multiplier" && !dry)
    return "--dry-multiplier is 0";
  if (flag == "--dry-multiplier" && dry && o.dry_penalty_last_n == 0)
    return "--dry-penalty-last-n is 0";
  if (flag == "--xtc-threshold" && o.xtc_probability == 0) return "--xtc-probability is 0";
  if (flag == "--xtc-probability" && o.xtc_probability > 0 && o.xtc_threshold > 0.5f)
    return "--xtc-threshold is above 0.5";
  if (flag == "--dynatemp-exp" && o.dynatemp_range == 0) return "--dynatemp-range is 0";
  if ((flag == "--mirostat-lr" || flag == "--mirostat-ent") && o.mirostat == 0)
    return "--mirostat is 0";
  if (flag == "--adaptive-decay" && o.adaptive_target < 0) return "--adaptive-target is not set";
  return nullptr;
}

// Why a flag changes nothing, or null.
const char* why_unused(const std::string& flag, const SamplerOptions& o) {
  const auto step = step_of(flag);
  if (o.mirostat != 0 && ((step && flag != "--temp") || flag == "--samplers"))
    return "mirostat takes the place of the other samplers";
  if (o.mirostat == 0 && step && !in_order(o, *step)) {
    return *step == SamplerStep::kAdaptiveP ? "adaptive_p is not in --samplers"
                                            : "its sampler is not in --samplers";
  }
  if (is_greedy(o)) {
    if (const char* const why = why_useless_when_greedy(flag, o)) return why;
  }
  return why_off(flag, o);
}

// \n, \t, \r, \\, \" and \' as in llama.cpp; other backslashes stand for themselves.
std::string unescape(const std::string& text) {
  constexpr std::string_view kWritten = "ntr\\\"'";
  constexpr std::string_view kMeant = "\n\t\r\\\"'";
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::size_t at = text[i] == '\\' && i + 1 < text.size() ? kWritten.find(text[i + 1])
                                                                  : std::string_view::npos;
    plain += at == std::string_view::npos ? text[i] : kMeant[at];
    if (at != std::string_view::npos) ++i;
  }
  return plain;
}

// "15043+1", "15043-0.5", "2-inf"
Result<LogitBias> parse_bias(const std::string& text) {
  const Error bad = usage_error(fmt::format(
      "--logit-bias '{}' is not of the form TOKEN+BIAS or TOKEN-BIAS, e.g. 15043+1 or 2-inf",
      text));
  LogitBias bias;
  const char* const end = text.data() + text.size();
  const auto [sign, token_error] = std::from_chars(text.data(), end, bias.token);
  if (token_error != std::errc() || sign == end || (*sign != '+' && *sign != '-')) return bad;
  const auto [rest, bias_error] = std::from_chars(sign + 1, end, bias.bias);
  const bool signed_twice = sign + 1 != end && (sign[1] == '-' || sign[1] == '+');
  if (bias_error != std::errc() || rest != end || signed_twice) return bad;
  if (*sign == '-') bias.bias = -bias.bias;
  return bias;
}

Result<std::string> read_grammar(const SamplerFlags& flags) {
  std::string text = flags.grammar;
  if (!flags.grammar_file.empty()) {
    VOLVELLE_ASSIGN_OR_RETURN(text, read_text_file(flags.grammar_file));
  }
  const Status usable = check_text(text, "the grammar");
  if (!usable.ok()) return usage_error(usable.error().message);
  return text;
}

bool given(const SamplerFlags& flags, const std::string& name) {
  return std::any_of(flags.declared.begin(), flags.declared.end(), [&](const CLI::Option* option) {
    return option->count() > 0 && option->check_lname(name);
  });
}

Status read_stops(SamplerFlags& flags) {
  for (std::string& stop : flags.stops) {
    stop = unescape(stop);
    if (stop.empty())
      return usage_error("--stop '' would stop before the first token: name a text");
    if (find_invalid_utf8(stop) != std::string::npos) {
      return usage_error("--stop: the text is not valid UTF-8, but answers always are");
    }
  }
  return {};
}

template <class Add>
void add_number_flags(SamplerOptions& o, const Add& number) {
  number("--temp,--temperature", o.temperature, "Temperature (0: always the best token)");
  number("--top-k", o.top_k, "Sample among the k best (0: all)");
  number("--top-p", o.top_p, "Sample within this probability mass (1: all)");
  number("--min-p", o.min_p,
         "Drop tokens below this share of the best one's probability (0: none)");
  number("--top-nsigma,--top-n-sigma", o.top_n_sigma,
         "Drop tokens n standard deviations below the best (-1: none)");
  number("--typical,--typical-p", o.typical_p, "Locally typical sampling (1: off)");
  number("--xtc-probability", o.xtc_probability, "Chance to drop all but the last likely token");
  number("--xtc-threshold", o.xtc_threshold, "What counts as likely (above 0.5: off)");
  number("--repeat-last-n", o.repeat_last_n,
         "Last tokens, of prompt and answer, that penalties look at (0: off)");
  number("--repeat-penalty", o.repeat_penalty, "Penalty of repeated tokens (1: off)");
  number("--presence-penalty", o.presence_penalty, "Penalty of tokens that occur (0: off)");
  number("--frequency-penalty", o.frequency_penalty, "Penalty for every occurrence (0: off)");
  number("--dry-multiplier", o.dry_multiplier, "DRY: penalty of repeated sequences (0: off)");
  number("--dry-base", o.dry_base, "DRY: growth of the penalty with the sequence");
  number("--dry-allowed-length", o.dry_allowed_length, "DRY: longest sequence without a penalty");
  number("--dry-penalty-last-n", o.dry_penalty_last_n, "DRY: last tokens it looks at (0: off)");
  number("--dynatemp-range", o.dynatemp_range, "Temperature +- this, by entropy (0: off)");
  number("--dynatemp-exp", o.dynatemp_exponent, "How entropy becomes temperature");
  number("--mirostat", o.mirostat, "1 or 2: Mirostat instead of the other samplers (0: off)");
  number("--mirostat-lr", o.mirostat_lr, "Mirostat's learning rate");
  number("--mirostat-ent", o.mirostat_entropy, "Mirostat's target entropy");
  number("--adaptive-target", o.adaptive_target,
         "adaptive-p: choose tokens near this probability (-1: off)");
  number("--adaptive-decay", o.adaptive_decay, "adaptive-p: how slowly it adapts");
}

}  // namespace

void add_sampler_flags(CLI::App& app, SamplerFlags& flags) {
  constexpr const char* kGroup = "Sampling";
  const auto keep = [&flags](CLI::Option* option) {
    flags.declared.push_back(option->group(kGroup));
    return option;
  };
  const auto add = [&](const char* names, auto& value, const char* help) {
    return keep(app.add_option(names, value, help));
  };
  // One value for each use of the flag, or they would swallow what follows.
  const auto add_list = [&](const char* names, std::vector<std::string>& value, const char* help) {
    add(names, value, help)->allow_extra_args(false);
  };
  app.add_option("-n,--predict", flags.n_predict, "Tokens to generate (-1: until the model ends)")
      ->check(CLI::Range(std::int64_t{-1}, std::int64_t{1} << 40))
      ->capture_default_str();
  add_list("-r,--reverse-prompt,--stop", flags.stops,
           "End the answer before this text; may be repeated; \\n and \\t are understood");
  add("-s,--seed", flags.seed, "Seed of all draws (-1: a random one)")
      ->check(CLI::Range(std::int64_t{-1}, kLargestSeed))
      ->capture_default_str();
  add_number_flags(flags.options, [&](const char* names, auto& value, const char* help) {
    add(names, value, help)->capture_default_str();
  });
  add_list("--dry-sequence-breaker", flags.breakers,
           "DRY: text that no sequence crosses, instead of \\n : \" and *; none: no such text");
  add("--samplers", flags.samplers,
      "Samplers in their order, e.g. 'top_k;temperature' (default: penalties;dry;top_n_sigma;top_k;"
      "typ_p;top_p;min_p;xtc;temperature)");
  add_list("-l,--logit-bias", flags.biases,
           "TOKEN+BIAS or TOKEN-BIAS: more or less of one token; 2-inf forbids token 2");
  keep(app.add_flag("--ignore-eos", flags.options.ignore_eos, "Never end on the model's own"));
  CLI::Option* const grammar =
      add("--grammar", flags.grammar, "GBNF grammar that the answer must follow");
  add("--grammar-file", flags.grammar_file, "File with such a grammar")->excludes(grammar);
}

Status prepare_sampling(SamplerFlags& flags, Console& console) {
  SamplerOptions& options = flags.options;
  VOLVELLE_RETURN_IF_ERROR(read_stops(flags));
  if (given(flags, "samplers")) {
    VOLVELLE_ASSIGN_OR_RETURN(options.order, parse_sampler_order(flags.samplers));
  }
  for (const std::string& text : flags.biases) {
    VOLVELLE_ASSIGN_OR_RETURN(const LogitBias bias, parse_bias(text));
    options.logit_bias.push_back(bias);
  }
  if (given(flags, "dry-sequence-breaker")) {
    options.dry_sequence_breakers.clear();
    for (const std::string& text : flags.breakers) {
      if (text == "none") options.dry_sequence_breakers.clear();
      if (text != "none") options.dry_sequence_breakers.push_back(unescape(text));
    }
  }
  if (given(flags, "grammar") || given(flags, "grammar-file")) {
    VOLVELLE_ASSIGN_OR_RETURN(options.grammar, read_grammar(flags));
  }
  options.seed = static_cast<std::uint32_t>(std::max(flags.seed, std::int64_t{0}));
  VOLVELLE_RETURN_IF_ERROR(check_sampler_options(options));
  if (flags.seed == -1 && used_seed(options)) {
    std::random_device device;
    options.seed = device() % static_cast<std::uint32_t>(kLargestSeed + 1);
    console.note(fmt::format("seed {}", options.seed));
  }
  return {};
}

void warn_of_unused(const SamplerFlags& flags, const Model& model, Console& console) {
  std::map<std::string, std::string> flags_of;  // by reason
  for (const CLI::Option* option : flags.declared) {
    if (option->count() == 0) continue;
    const std::string name = "--" + option->get_lnames().front();
    const char* why = why_unused(name, flags.options);
    if (name == "--ignore-eos") {
      const Tokenizer& tokenizer = model.tokenizer();
      bool ends = false;
      for (TokenId i = 0; i < tokenizer.n_vocab() && !ends; ++i) {
        ends = tokenizer.is_end_of_generation(i);
      }
      if (!ends) why = "the model has no end token";
    }
    if (why == nullptr) continue;
    std::string& names = flags_of[why];
    names.append(names.empty() ? "" : ", ").append(name);
  }
  for (const auto& [why, names] : flags_of) {
    console.warn(fmt::format("{} without effect: {}", names, why));
  }
}

std::optional<std::uint32_t> used_seed(const SamplerOptions& options) {
  const bool xtc = options.mirostat == 0 && options.xtc_probability > 0 &&
                   options.xtc_threshold <= 0.5f && in_order(options, SamplerStep::kXtc);
  if (is_greedy(options) && !xtc) return std::nullopt;
  return options.seed;
}

Result<Sampler> make_sampler(const Model& model, const SamplerOptions& options) {
  if (options.grammar.empty()) return Sampler::create(model, options);
  // The engine says what is wrong with a grammar on stderr and nowhere else.
  CapturedStderr captured;
  Result<Sampler> sampler = Sampler::create(model, options);
  const std::string said = captured.take();
  if (sampler.ok()) {
    write_stderr(said);
    return sampler;
  }
  std::string reason = said.substr(0, said.find('\n'));
  constexpr std::string_view kOpening = "parse: error parsing grammar: ";
  if (reason.starts_with(kOpening)) reason.erase(0, kOpening.size());
  Error error = sampler.error();
  if (!reason.empty()) error.message += fmt::format(" (it says: {})", reason);
  return error;
}

}  // namespace volvelle::cli
