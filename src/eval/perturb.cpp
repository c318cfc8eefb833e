// Every damage goes through the same documents, haystacks and questions, so rows differ by the
// damage alone. Bands are damaged as keys are stored, in all of a run; compression comes once a
// document has been read, as compressed caches are made.
#include "eval/perturb.hpp"

#include <algorithm>
#include <cmath>

#include "base/result_macros.hpp"
#include "eval/band_damage.hpp"
#include "eval/key_edits.hpp"
#include "eval/memory_edit.hpp"
#include "eval/progress_meter.hpp"
#include "eval/seeded_choices.hpp"
#include "eval/timed_fold.hpp"
#include "volvelle/eval/fidelity.hpp"
#include "volvelle/eval/natural_needle.hpp"
#include "volvelle/runtime/chat_format.hpp"

namespace volvelle {
namespace {

constexpr std::int64_t kChoiceContext = 256;
constexpr std::int64_t kChoiceTokens = 24;
constexpr int kCandidates = 4;

/// One row of the table before it is run.
struct Damage {
  std::string kind;
  std::string what;
  double size = 0.0;
};

std::vector<Damage> all_damages(const PerturbOptions& options) {
  std::vector<Damage> damages = {{"none", "", 0.0}};
  for (const char* which : {"slow", "fast", "random"}) damages.push_back({"remove", which, 0.0});
  for (const double size : options.sizes) {
    for (const char* which : {"slow", "fast", "random"})
      damages.push_back({"disturb", which, size});
  }
  for (const char* what : {"q4_0", "low_rank", "merge", "evict"})
    damages.push_back({"compress", what, 0.0});
  return damages;
}

Error invalid(const std::string& what) {
  return Error{ErrorCode::kInvalidArgument, "perturb: " + what};
}

/// Sinks and the later half of a document.
MemorySpec half_of(std::int64_t n_tokens) {
  MemorySpec spec;
  spec.sink = 4;
  spec.window = WindowTerm{std::max<std::int64_t>(1, n_tokens / 2), 1};
  return spec;
}

/// A memory as a compressed cache would keep it.
Result<ContextMemory> compressed(const ContextMemory& memory, const std::string& what,
                                 const ModelRotations& rotations) {
  if (what == "evict")
    return edited_memory(memory, half_of(memory.length()),
                         [](const HeadRows&) -> Status { return {}; });
  return edited_memory(memory, memory.spec(), [&](const HeadRows& head) -> Status {
    const RotationGroup* const rotation = rotations.of(static_cast<int>(head.layer.value()));
    const BandLayout layout{rotation != nullptr ? rotation->node.layout : RopeLayout::kHalfSplit,
                            head.dim,
                            rotation != nullptr ? rotation->node.rotated_dims : head.dim / 2 * 2};
    if (!head.keys && what == "low_rank") return {};  // of keys
    std::vector<int> bands;
    VOLVELLE_ASSIGN_OR_RETURN(const std::vector<float> edited,
                              edited_keys(what, layout, head.rows, 0, bands));
    std::copy(edited.begin(), edited.end(), head.rows.begin());
    return {};
  });
}

class Perturb {
 public:
  Perturb(const Model& model, std::string_view book, std::vector<TokenId> tokens,
          const PerturbOptions& options)
      : model_(model), book_(book), tokens_(std::move(tokens)), options_(options) {}

  Status prepare() {
    VOLVELLE_ASSIGN_OR_RETURN(ModelRotations rotations, model_rotations(model_));
    rotations_ = std::make_shared<ModelRotations>(std::move(rotations));
    return {};
  }

  Result<PerturbRow> run(const Damage& damage) {
    SessionOptions session_options = options_.session;
    if (damage.kind == "remove" || damage.kind == "disturb")
      session_options.edit_rows = damage_bands(rotations_, damage.what, damage.size, options_.seed);
    VOLVELLE_ASSIGN_OR_RETURN(Session session, Session::create(model_, session_options));
    PerturbRow row{damage.kind, damage.what, damage.size, 0.0, 0, 0.0, 0, 0.0, 0};
    VOLVELLE_RETURN_IF_ERROR(retrieve(session, damage, row));
    if (is_wired_retriever(model_)) return row;
    VOLVELLE_RETURN_IF_ERROR(measure_perplexity(session, damage, row));
    VOLVELLE_RETURN_IF_ERROR(choose(session, damage, row));
    return row;
  }

 private:
  Result<ContextMemory> read(Session& session, std::span<const TokenId> text,
                             const Damage& damage) const {
    VOLVELLE_ASSIGN_OR_RETURN(ContextMemory memory, session.begin(MemorySpec::full_memory()));
    const ProgressSink quiet;
    ProgressMeter meter(quiet, "", "", 0);
    std::vector<ChunkTime> times;
    VOLVELLE_RETURN_IF_ERROR(fold_timed(session, memory, text, options_.chunk, meter, times));
    if (damage.kind != "compress") return memory;
    return compressed(memory, damage.what, *rotations_);
  }

  Status retrieve(Session& session, const Damage& damage, PerturbRow& row) const {
    if (options_.trials == 0) return {};
    const std::int64_t n_chunks = options_.tokens / options_.chunk;
    const std::vector<std::int64_t> distances = {1, std::max<std::int64_t>(1, n_chunks / 2),
                                                 n_chunks};
    const MemoryFilter filter = [&](ContextMemory memory) -> Result<ContextMemory> {
      if (damage.kind != "compress") return memory;
      return compressed(memory, damage.what, *rotations_);
    };
    const MemorySpec spec = MemorySpec::full_memory();
    NeedleResult found;
    if (is_wired_retriever(model_)) {
      NeedleOptions options;
      options.tokens = options_.tokens;
      options.chunk = options_.chunk;
      options.distances = distances;
      options.trials = options_.trials;
      options.seed = options_.seed;
      options.after_fold = filter;
      VOLVELLE_ASSIGN_OR_RETURN(found, run_needle(model_, session, spec, options, {}));
    } else {
      NaturalNeedleOptions options;
      options.tokens = options_.tokens;
      options.chunk = options_.chunk;
      options.distances = distances;
      options.trials = options_.trials;
      options.seed = options_.seed;
      options.chat = default_chat_format(model_) != "raw";
      options.after_fold = filter;
      VOLVELLE_ASSIGN_OR_RETURN(found, run_natural_needle(session, spec, book_, options, {}));
    }
    double correct = 0.0;
    for (const NeedleRow& one : found.rows) {
      correct += static_cast<double>(one.correct);
      row.n_retrieval += one.trials;
    }
    row.retrieval = correct / static_cast<double>(std::max<std::int64_t>(row.n_retrieval, 1));
    return {};
  }

  /// Where document or question i of n begins in the book.
  std::span<const TokenId> stretch(std::int64_t i, std::int64_t n, std::int64_t length) const {
    const std::int64_t room = std::ssize(tokens_) - length;
    return std::span(tokens_).subspan(
        static_cast<std::size_t>(room * i / std::max<std::int64_t>(n, 1)),
        static_cast<std::size_t>(length));
  }

  /// Sum of -log p of `targets` behind a memory whose last token is `last`; the memory is advanced.
  Result<double> surprise(Session& session, ContextMemory& memory, TokenId last,
                          std::span<const TokenId> targets) const {
    std::vector<TokenId> run = {last};
    run.insert(run.end(), targets.begin(), targets.end() - 1);
    double sum = 0.0;
    for (std::size_t done = 0; done < run.size();) {
      const std::size_t n = std::min<std::size_t>(64, run.size() - done);
      VOLVELLE_RETURN_IF_ERROR(session.step(memory, std::span(run).subspan(done, n), Logits::kAll));
      for (std::size_t i = 0; i < n; ++i)
        sum += negative_log_likelihood(session.logits(static_cast<std::int64_t>(i)),
                                       targets[done + i]);
      done += n;
    }
    return sum;
  }

  Status measure_perplexity(Session& session, const Damage& damage, PerturbRow& row) const {
    double sum = 0.0;
    for (std::int64_t i = 0; i < options_.texts; ++i) {
      const auto text = stretch(i, options_.texts, options_.tokens + 1 + options_.continuation);
      const auto document = text.first(static_cast<std::size_t>(options_.tokens));
      VOLVELLE_ASSIGN_OR_RETURN(ContextMemory memory, read(session, document, damage));
      VOLVELLE_ASSIGN_OR_RETURN(
          const double surprised,
          surprise(session, memory, text[document.size()], text.subspan(document.size() + 1)));
      sum += surprised;
      row.n_perplexity += options_.continuation;
    }
    row.perplexity = std::exp(sum / static_cast<double>(row.n_perplexity));
    return {};
  }

  /// The true continuation against three from elsewhere in the book.
  Status choose(Session& session, const Damage& damage, PerturbRow& row) const {
    const std::int64_t length = kChoiceContext + 1 + kChoiceTokens;
    for (std::int64_t i = 0; i < options_.choices; ++i) {
      const auto text = stretch(i, options_.choices, length);
      SeededChoices random(options_.seed, {i});
      VOLVELLE_ASSIGN_OR_RETURN(
          const ContextMemory memory,
          read(session, text.first(static_cast<std::size_t>(kChoiceContext)), damage));
      std::vector<double> surprises;
      for (int candidate = 0; candidate < kCandidates; ++candidate) {
        std::vector<TokenId> targets(text.end() - kChoiceTokens, text.end());
        if (candidate > 0) {
          const std::size_t from = random.below(tokens_.size() - static_cast<std::size_t>(length));
          std::copy_n(tokens_.begin() + static_cast<std::ptrdiff_t>(from), kChoiceTokens,
                      targets.begin());
        }
        ContextMemory branch = memory.clone();
        VOLVELLE_ASSIGN_OR_RETURN(
            const double surprised,
            surprise(session, branch, text[static_cast<std::size_t>(kChoiceContext)], targets));
        surprises.push_back(surprised);
      }
      const auto best = std::min_element(surprises.begin(), surprises.end());
      row.choice += best == surprises.begin() ? 1.0 : 0.0;
      ++row.n_choice;
    }
    row.choice /= static_cast<double>(std::max<std::int64_t>(row.n_choice, 1));
    return {};
  }

  const Model& model_;
  std::string_view book_;
  std::vector<TokenId> tokens_;
  const PerturbOptions& options_;
  std::shared_ptr<const ModelRotations> rotations_;
};

Status check_options(const PerturbOptions& options) {
  if (options.chunk < 1 || options.tokens < 256 || options.tokens % options.chunk != 0)
    return invalid("expected 256 tokens or more, a multiple of the chunk, not " +
                   std::to_string(options.tokens) + " in chunks of " +
                   std::to_string(options.chunk));
  if (options.continuation < 2 || options.texts < 1 || options.choices < 1 || options.trials < 0)
    return invalid("expected at least 2 tokens of continuation, a text and a choice");
  for (const double size : options.sizes) {
    if (!(size > 0.0 && size <= 100.0)) return invalid("sizes must lie above 0 and up to 100");
  }
  return {};
}

}  // namespace

Result<std::vector<PerturbRow>> run_perturb(const Model& model, std::string_view book,
                                            const PerturbOptions& options,
                                            const ProgressSink& progress) {
  VOLVELLE_RETURN_IF_ERROR(check_options(options));
  std::vector<TokenId> tokens;
  if (!is_wired_retriever(model)) {
    VOLVELLE_ASSIGN_OR_RETURN(TokenizedText text,
                              model.tokenizer().tokenize(book, {.add_special = false}));
    tokens = std::move(text.tokens);
    if (std::ssize(tokens) < 2 * (options.tokens + options.continuation + 1))
      return invalid("the book has " + std::to_string(tokens.size()) +
                     " tokens, too few for documents of " + std::to_string(options.tokens));
  }
  Perturb perturb(model, book, std::move(tokens), options);
  VOLVELLE_RETURN_IF_ERROR(perturb.prepare());
  const std::vector<Damage> damages = all_damages(options);
  ProgressMeter meter(progress, "perturb", "kinds of damage", std::ssize(damages));
  std::vector<PerturbRow> rows;
  for (const Damage& damage : damages) {
    if (options.session.cancel.cancelled())
      return Error{ErrorCode::kCancelled, "perturb: interrupted"};
    VOLVELLE_ASSIGN_OR_RETURN(PerturbRow row, perturb.run(damage));
    rows.push_back(std::move(row));
    meter.add(1);
  }
  return rows;
}

}  // namespace volvelle
