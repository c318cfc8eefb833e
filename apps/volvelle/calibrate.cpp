// `volvelle calibrate`: makes the codes of an index from a text and saves them, for memories that
// must be indexed before they have late positions of their own (streams).
//
// The file is a memory of one token with the codes and nothing else, so all checks of memories hold
// for it. Codes know only the positions they were made from: a memory that uses them may not grow
// beyond. Measured, codes made of a memory's own rows are better; this is for where there are none.
#include <fmt/format.h>

#include "base/result_macros.hpp"
#include "command.hpp"
#include "fold.hpp"
#include "options.hpp"
#include "output_path.hpp"
#include "text_input.hpp"

namespace volvelle::cli {

namespace {

struct CalibrateFlags {
  ModelFlags model;
  MemoryFlags memory;
  std::string file;
  std::string output;
  std::int64_t tokens = 0;
};

void declare(CLI::App& app, CalibrateFlags& flags) {
  add_model_flags(app, flags.model, ModelFlag::kRequired);
  flags.memory.spec = "full+topk(k=128)";
  add_memory_flags(app, flags.memory);
  app.add_option("-f,--file", flags.file, "Text, or the name of one in the cache folder's texts/")
      ->required();
  app.add_option("-o,--output", flags.output, "Calibration file to write")->required();
  app.add_option("--tokens", flags.tokens, "The first so many tokens of the text (0: all)")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))
      ->capture_default_str();
}

Json head_json(std::size_t layer, std::size_t head, const HeadDiagnostics& seen) {
  return {{"layer", layer},
          {"head", head},
          {"predicted_error", seen.predicted_error},
          {"principal_error", seen.principal_error},
          {"key_spikes", seen.key_spikes},
          {"inflation_keys", seen.inflation_keys},
          {"inflation_queries", seen.inflation_queries},
          {"shrinkage_keys", seen.shrinkage_keys},
          {"shrinkage_queries", seen.shrinkage_queries}};
}

Result<std::vector<TokenId>> tokens_of(const CalibrateFlags& flags, const Model& model,
                                       std::int64_t limit, Console& console) {
  if (flags.tokens > 0) return first_tokens(model, flags.file, flags.tokens, console);
  VOLVELLE_ASSIGN_OR_RETURN(const TextInput text, read_text(flags.file, console));
  VOLVELLE_ASSIGN_OR_RETURN(auto all, model.tokenizer().tokenize(text.text, {.add_special = true}));
  VOLVELLE_RETURN_IF_ERROR(require_room(std::ssize(all.tokens), limit, model, "the text"));
  return std::move(all.tokens);
}

Result<Report> run(const CalibrateFlags& flags, Console& console) {
  VOLVELLE_ASSIGN_OR_RETURN(const MemorySpec spec, effective_spec(flags.memory));
  if (!spec.topk) {
    return usage_error(
        fmt::format("--memory '{}' has no index; use e.g. 'full+topk(k=128)'", to_string(spec)));
  }
  if (spec.topk->min)
    return usage_error(
        "min of topk says from when on an index is read: it is no part of a "
        "calibration, leave it out");
  VOLVELLE_ASSIGN_OR_RETURN(const auto model_path, find_input(flags.model.model, "models"));
  VOLVELLE_RETURN_IF_ERROR(check_output(flags.output, {model_path}));
  VOLVELLE_ASSIGN_OR_RETURN(const Model model, load_model(model_path, console));
  VOLVELLE_ASSIGN_OR_RETURN(const std::int64_t limit, context_limit(flags.model, model));
  VOLVELLE_ASSIGN_OR_RETURN(const auto tokens, tokens_of(flags, model, limit, console));
  if (std::ssize(tokens) < kMinIndexedTokens) {
    return usage_error(fmt::format("{} tokens are too few to make codes from; expected at least {}",
                                   tokens.size(), kMinIndexedTokens));
  }
  VOLVELLE_ASSIGN_OR_RETURN(const auto options, session_options(flags.model, spec, console));
  VOLVELLE_ASSIGN_OR_RETURN(Session session, Session::create(model, options));
  VOLVELLE_ASSIGN_OR_RETURN(ContextMemory memory, session.begin(spec));
  VOLVELLE_RETURN_IF_ERROR(read_tokens(session, memory, tokens, flags.model.ubatch, console));
  IndexDiagnostics heads;
  VOLVELLE_RETURN_IF_ERROR(session.prepare_index(memory, &heads));
  // A memory of its own: one with windows could not be cut back.
  VOLVELLE_ASSIGN_OR_RETURN(ContextMemory codes, session.begin(spec));
  VOLVELLE_RETURN_IF_ERROR(codes.adopt_codes(memory));
  if (codes.index()->position_limit() == 0)
    return usage_error("no layer of this model is read through an index with this spec");
  VOLVELLE_RETURN_IF_ERROR(session.step(codes, std::span(tokens).first(1), Logits::kNone));
  MemoryRecord record = make_record(model, {}, spec, flags.model.ubatch);
  record.kind = kCalibrationMemory;
  record.tokens = {tokens.front()};
  record.ranges = {ByteRange{}};
  VOLVELLE_ASSIGN_OR_RETURN(const std::uint64_t bytes, save_memory(flags.output, record, codes));
  Report report;
  report.json = {{"file", flags.output},    {"file_bytes", bytes},
                 {"spec", record.spec},     {"positions", tokens.size()},
                 {"engine", record.engine}, {"model_fingerprint", record.model_fingerprint},
                 {"heads", Json::array()}};
  double ours = 0.0;
  double principal = 0.0;
  for (std::size_t layer = 0; layer < heads.size(); ++layer) {
    for (std::size_t head = 0; head < heads[layer].size(); ++head) {
      report.json["heads"].push_back(head_json(layer, head, heads[layer][head]));
      ours += heads[layer][head].predicted_error;
      principal += heads[layer][head].principal_error;
    }
  }
  const auto n = static_cast<double>(std::max<std::size_t>(report.json["heads"].size(), 1));
  report.text = fmt::format(
      "codes of {} heads for positions below {}\n"
      "relative score error that 32 coordinates leave, predicted: {:.3f} (PCA {:.3f})\n"
      "wrote {}, {}\n",
      report.json["heads"].size(), tokens.size(), ours / n, principal / n,
      escape_controls(flags.output), human_bytes(bytes));
  return report;
}

}  // namespace

void add_calibrate(CLI::App& parent, Selected& selected) {
  add_command<CalibrateFlags>(parent, selected, "calibrate",
                              "Make the codes of an index from a text, for streams", declare, run);
}

}  // namespace volvelle::cli
