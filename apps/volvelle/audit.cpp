// `volvelle audit`: how far a memory is from the exact run, over the last positions of a text.
//
//   'full' against plain llama.cpp (flash attention); any other spec against our own exact read
//
// Two exact runs differ by rounding, so against llama.cpp the difference of its own two attention
// paths on the same tokens stands beside ours (two_path_kl): nothing below it can be seen. Only f32
// models make that small. Cost: two passes over the text, four against llama.cpp.
#include <fmt/format.h>

#include <cmath>

#include "audit_bounds.hpp"
#include "base/result_macros.hpp"
#include "certificate.hpp"
#include "command.hpp"
#include "options.hpp"
#include "stored_memory.hpp"
#include "text_input.hpp"
#include "volvelle/eval/fidelity.hpp"

namespace volvelle::cli {

namespace {

struct AuditFlags {
  ModelFlags model;
  MemoryFlags memory;
  std::string file;
  std::string against;
  std::int64_t tokens = 4096;
  std::int64_t last = 256;
  std::int64_t chunk = 256;
  BoundsFlags bounds;
};

void declare(CLI::App& app, AuditFlags& flags) {
  add_model_flags(app, flags.model, ModelFlag::kRequired);
  add_memory_flags(app, flags.memory);
  add_calibration_flag(app, flags.memory);
  app.add_option("-f,--file", flags.file, "Text, or the name of one in the cache folder's texts/")
      ->required();
  app.add_option("--tokens", flags.tokens, "The first so many tokens of the text")
      ->check(CLI::Range(std::int64_t{2}, std::int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--last", flags.last, "Positions to compare, decoded one by one")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--chunk", flags.chunk, "Tokens per step before them")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->capture_default_str();
  app.add_option("--against", flags.against,
                 "Reference: llama (plain llama.cpp) or full (our exact read); default: llama for "
                 "'full', full for anything else")
      ->check(CLI::IsMember({"llama", "full"}));
  declare_bounds(app, flags.bounds);
  for (const char* other : {"--against", "--last", "--chunk", "--calibration", "--ctx-size"})
    app.get_option("--bounds")->excludes(app.get_option(other));
}

// Nothing is dropped or estimated; only the storage types may differ.
bool is_exact(const MemorySpec& spec) { return spec.full && !spec.topk && !spec.tail; }

// Rows that queries at the last positions see, over all rows before them.
double rows_read_ratio(const MemorySpec& spec, std::int64_t n_tokens, std::int64_t last) {
  double read = 0;
  double all = 0;
  for (std::int64_t t = n_tokens - last; t < n_tokens; ++t) {
    const std::int64_t begin = spec.full ? 0 : window_begin(spec, t);
    const std::int64_t sinks = std::min(spec.sink.value_or(0), begin);
    read += static_cast<double>(sinks + t + 1 - begin);
    all += static_cast<double>(t + 1);
  }
  return read / all;
}

// llama.cpp's own runs know nothing of Ctrl-C; this stops them between steps.
class Interruptible final : public Stepper {
 public:
  Interruptible(std::unique_ptr<Stepper> inner, CancelToken cancel)
      : inner_(std::move(inner)), cancel_(std::move(cancel)) {}
  Status step(std::span<const TokenId> tokens, Logits want) override {
    if (cancel_.cancelled()) return Error{ErrorCode::kCancelled, "audit: interrupted"};
    return inner_->step(tokens, want);
  }
  std::span<const float> logits(std::int64_t i) const override { return inner_->logits(i); }
  std::int64_t length() const override { return inner_->length(); }
  Status truncate(std::int64_t length) override { return inner_->truncate(length); }
  double take_attention_seconds() override { return inner_->take_attention_seconds(); }

 private:
  std::unique_ptr<Stepper> inner_;
  CancelToken cancel_;
};

class Audit {
 public:
  Audit(const AuditFlags& flags, const Model& model, std::span<const TokenId> tokens,
        Console& console)
      : flags_(flags), model_(model), tokens_(tokens), console_(console) {}

  Result<Fidelity> against_llama(const MemorySpec& spec) {
    VOLVELLE_ASSIGN_OR_RETURN(const KvTypes kv, kv_types(spec));
    VOLVELLE_ASSIGN_OR_RETURN(auto reference, make_engine(true, kv));
    return compare_with(*reference, spec);
  }

  Result<Fidelity> against_full(const MemorySpec& spec) {
    MemorySpec exact = MemorySpec::full_memory();
    exact.kv = spec.kv;  // the same storage, so that only the dropped rows are measured
    VOLVELLE_ASSIGN_OR_RETURN(Session session, make_session(exact));
    VOLVELLE_ASSIGN_OR_RETURN(ContextMemory memory, session.begin(exact));
    const auto reference = make_memory_stepper(session, std::move(memory));
    return compare_with(*reference, spec);
  }

  /// What the reads of the audited memory cost and what is known about them.
  const ReadStatistics& reads() const { return reads_; }

  Result<Fidelity> two_paths(const MemorySpec& spec) {
    VOLVELLE_ASSIGN_OR_RETURN(const KvTypes kv, kv_types(spec));
    VOLVELLE_ASSIGN_OR_RETURN(auto flash, make_engine(true, kv));
    VOLVELLE_ASSIGN_OR_RETURN(auto plain, make_engine(false, kv));
    return compare(*flash, *plain, tokens_, flags_.last, flags_.chunk, console_.progress_sink());
  }

 private:
  Result<Session> make_session(const MemorySpec& spec) {
    VOLVELLE_ASSIGN_OR_RETURN(auto options, session_options(flags_.model, spec, console_));
    options.audit_reads = true;
    return Session::create(model_, options);
  }

  Result<std::unique_ptr<Stepper>> make_engine(bool flash_attention, const KvTypes& kv) {
    const EngineStepperOptions options{.n_ctx = static_cast<std::int64_t>(tokens_.size()),
                                       .n_threads = flags_.model.threads,
                                       .n_threads_batch = flags_.model.threads_batch,
                                       .n_ubatch = flags_.model.ubatch,
                                       .flash_attention = flash_attention,
                                       .kv_type = kv.k,
                                       .capture = {}};
    VOLVELLE_ASSIGN_OR_RETURN(auto engine, make_engine_stepper(model_, options));
    return std::unique_ptr<Stepper>(
        std::make_unique<Interruptible>(std::move(engine), console_.cancel()));
  }

  Result<Fidelity> compare_with(Stepper& reference, const MemorySpec& spec) {
    VOLVELLE_ASSIGN_OR_RETURN(Session session, make_session(spec));
    VOLVELLE_ASSIGN_OR_RETURN(ContextMemory memory, session.begin(spec));
    VOLVELLE_RETURN_IF_ERROR(
        apply_calibration(flags_.memory.calibration, model_, memory, console_));
    const auto candidate = make_memory_stepper(session, std::move(memory));
    Result<Fidelity> found = compare(reference, *candidate, tokens_, flags_.last, flags_.chunk,
                                     console_.progress_sink());
    reads_ = session.take_read_statistics();
    return found;
  }

  const AuditFlags& flags_;
  const Model& model_;
  std::span<const TokenId> tokens_;
  Console& console_;
  ReadStatistics reads_;
};

/// What an audit has found.
struct Findings {
  std::string against;
  Fidelity fidelity;
  Json two_path_kl;
  ReadStatistics reads;
};

// Only reads through an index can be off.
Json mean_of(double sum, const ReadStatistics& reads) {
  return reads.audited > 0 ? Json(sum / static_cast<double>(reads.audited)) : Json();
}

// The token behind the last one of a text is not known.
Json if_predicted(const Fidelity& found, double value) {
  return found.n_predicted > 0 ? Json(value) : Json();
}

Report make_report(const AuditFlags& flags, const Model& model, const MemorySpec& spec,
                   const Findings& findings) {
  const auto& [against, found, two_path_kl, reads] = findings;
  const double ratio =
      reads.bytes_dense > 0 ? bytes_ratio(reads) : rows_read_ratio(spec, flags.tokens, flags.last);
  const bool promised = reads.audited > 0 && spec.topk && spec.topk->cert != "none";
  Report report;
  report.json = {{"kl_mean", found.kl_mean},
                 {"kl_p99", found.kl_p99},
                 {"kl_max", found.kl_max},
                 {"top1_agreement", found.top1_agreement},
                 {"logit_delta_max", found.logit_delta_max},
                 {"perplexity", if_predicted(found, std::exp(found.candidate_nll))},
                 {"reference_perplexity", if_predicted(found, std::exp(found.reference_nll))},
                 {"nll_delta", if_predicted(found, found.candidate_nll - found.reference_nll)},
                 {"nll_delta_error", found.n_predicted > 1 ? Json(found.nll_delta_error) : Json()},
                 {"n_predicted", found.n_predicted},
                 {"output_error", mean_of(reads.sum_output_error, reads)},
                 {"variation_mean", mean_of(reads.sum_variation, reads)},
                 {"variation_max", reads.audited > 0 ? Json(reads.worst_variation) : Json()},
                 {"audited_reads", reads.audited},
                 {"violations", promised ? Json(reads.violations) : Json()},
                 {"bytes_ratio", ratio},
                 {"two_path_kl", two_path_kl},
                 {"n", found.n},
                 {"tokens", flags.tokens},
                 {"spec", to_string(spec)},
                 {"against", against},
                 {"engine", engine_version()},
                 {"model_fingerprint", model.info().fingerprint}};
  report.text = render_fields(report.json);
  report.json["certificate"] = certificate_json(spec, reads);
  if (spec.topk) report.text += certificate_text(spec, reads) + "\n";
  if (promised && reads.violations > 0) report.exit_code = kVerificationFailed;
  return report;
}

// llama.cpp is run with one type for keys and values.
Status require_equal_types(const MemorySpec& spec) {
  VOLVELLE_ASSIGN_OR_RETURN(const KvTypes kv, kv_types(spec));
  if (kv.k == kv.v) return {};
  return usage_error(
      fmt::format("-ctk {} with -ctv {}: against llama.cpp both must be the same: use -ctk {} -ctv "
                  "{}, or --against full",
                  to_string(kv.k), to_string(kv.v), to_string(kv.k), to_string(kv.k)));
}

Result<Report> run(const AuditFlags& flags, Console& console) {
  VOLVELLE_ASSIGN_OR_RETURN(const MemorySpec spec, effective_spec(flags.memory));
  if (flags.bounds.bounds)
    return audit_bounds(flags.model, spec, flags.bounds, flags.file, flags.tokens, console);
  if (flags.last >= flags.tokens) {
    return usage_error(
        fmt::format("--last {} must be less than --tokens {}", flags.last, flags.tokens));
  }
  const std::string fitting = is_exact(spec) ? "llama" : "full";
  const std::string against = flags.against.empty() ? fitting : flags.against;
  if (against == "llama") VOLVELLE_RETURN_IF_ERROR(require_equal_types(spec));
  VOLVELLE_ASSIGN_OR_RETURN(const Model model, load_model(flags.model, console));
  VOLVELLE_ASSIGN_OR_RETURN(const std::int64_t limit, context_limit(flags.model, model));
  VOLVELLE_RETURN_IF_ERROR(require_room(flags.tokens, limit, model, "--tokens"));
  VOLVELLE_ASSIGN_OR_RETURN(const auto tokens,
                            first_tokens(model, flags.file, flags.tokens, console));

  Audit audit(flags, model, tokens, console);
  Json two_path_kl;
  if (against == "llama") {
    VOLVELLE_ASSIGN_OR_RETURN(const Fidelity noise, audit.two_paths(spec));
    two_path_kl = noise.kl_mean;
    VOLVELLE_ASSIGN_OR_RETURN(const Fidelity found, audit.against_llama(spec));
    return make_report(flags, model, spec, {against, found, two_path_kl, audit.reads()});
  }
  VOLVELLE_ASSIGN_OR_RETURN(const Fidelity found, audit.against_full(spec));
  return make_report(flags, model, spec, {against, found, two_path_kl, audit.reads()});
}

}  // namespace

void add_audit(CLI::App& parent, Selected& selected) {
  add_command<AuditFlags>(parent, selected, "audit", "Measure how exact a memory is", declare, run);
}

}  // namespace volvelle::cli
