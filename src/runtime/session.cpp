// A session: an engine context of one ubatch, the hook, and the loop that moves tokens through
// them. A ubatch either becomes part of the memory as a whole or leaves no trace (begin, then
// commit or rollback), so errors and interrupts can not leave half a token behind.
#include "volvelle/runtime/session.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "base/result_macros.hpp"
#include "runtime/graph_hook.hpp"
#include "runtime/logit_rows.hpp"
#include "runtime/model_impl.hpp"

namespace volvelle {
namespace {

/// llama.cpp rounds a cache up to this many cells, so a smaller ubatch would gain nothing.
constexpr int kMinEngineCells = 256;

Error context_exceeded(std::int64_t have, std::int64_t more, std::int64_t limit) {
  return Error{ErrorCode::kContextExceeded,
               "run: " + std::to_string(have) + " tokens in memory and " + std::to_string(more) +
                   " more exceed the model's context of " + std::to_string(limit) +
                   "; use a shorter text or a model with a longer context"};
}

/// Zero times NaN or infinity is NaN, and NaN stays in a sum. Independent sums, so that it
/// vectorises: the vocabulary is long and this runs for every token.
bool all_finite(std::span<const float> row) noexcept {
  constexpr std::size_t kSums = 16;
  float poison[kSums] = {};
  std::size_t i = 0;
  for (; i + kSums <= row.size(); i += kSums) {
    for (std::size_t k = 0; k < kSums; ++k) poison[k] += row[i + k] * 0.0f;
  }
  for (; i < row.size(); ++i) poison[0] += row[i] * 0.0f;
  return std::all_of(poison, poison + kSums, [](float sum) { return sum == 0.0f; });
}

/// Whether the logits of token `i` of a part are wanted.
bool wants_logits(const UbatchPart& part, std::int64_t i) noexcept {
  return part.want == Logits::kAll ||
         (part.want == Logits::kLast && i + 1 == std::ssize(part.tokens));
}

}  // namespace

struct Session::Impl {
  const Model& model;
  SessionOptions options;
  StoreLayout layout;
  std::unique_ptr<GraphHook> hook;
  engine::ContextPtr context;
  engine::Batch batch;
  LogitRows logit_rows;
  int n_threads = 1;
  int max_threads = 1;
  std::vector<std::int64_t> first_logits;  // of each step of the last batch, and the end

  Impl(const Model& m, SessionOptions o)
      : model(m),
        options(std::move(o)),
        batch(options.n_ubatch),
        logit_rows(model.info().n_vocab) {}

  Status check(std::span<const SequenceStep> steps) const;
  Status check_dither(const ContextMemory& memory) const;
  Status prepare_indexes(std::span<const UbatchPart> parts);
  Status run_ubatch(std::span<const UbatchPart> parts);
  Status decode(std::span<const UbatchPart> parts);
  Status keep_logits(std::span<const UbatchPart> parts);
};

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

namespace {

/// The largest head dimensions of any layer.
struct HeadDims {
  int k = 0;
  int v = 0;
};
HeadDims largest_dims(const ModelInfo& model) {
  HeadDims dims;
  for (const LayerShape& layer : model.layers) {
    dims.k = std::max(dims.k, layer.head_dim_k);
    dims.v = std::max(dims.v, layer.head_dim_v);
  }
  return dims;
}

}  // namespace

Result<AttendWorkspace> make_workspace(const ModelInfo& model, int max_threads) {
  const HeadDims dims = largest_dims(model);
  return AttendWorkspace::create(max_threads, model.n_heads, dims.k, dims.v);
}

Result<Session> Session::create(const Model& model, const SessionOptions& options) {
  if (options.n_ubatch < 1 || options.n_ubatch > 65536) {
    return Error{
        ErrorCode::kInvalidArgument,
        "session: ubatch size must be 1 to 65536 tokens, got " + std::to_string(options.n_ubatch)};
  }
  auto impl = std::make_unique<Impl>(model, options);
  const ModelInfo& info = model.info();
  impl->layout = StoreLayout{info.layers, options.kv.k, options.kv.v};
  if (options.max_sequences < 1 || options.max_sequences > kMaxSequences) {
    return Error{ErrorCode::kInvalidArgument,
                 "session: expected 1 to " + std::to_string(kMaxSequences) + " sequences, got " +
                     std::to_string(options.max_sequences)};
  }

  const int n_threads = engine::thread_count(options.n_threads);
  const int n_threads_batch = options.n_threads_batch > 0 ? options.n_threads_batch : n_threads;
  // Scratch for the larger of the two pools: the engine runs decode and prefill with different
  // numbers of threads.
  VOLVELLE_ASSIGN_OR_RETURN(auto workspace,
                            make_workspace(info, std::max(n_threads, n_threads_batch)));
  impl->n_threads = n_threads;
  impl->max_threads = std::max(n_threads, n_threads_batch);
  impl->hook = std::make_unique<GraphHook>(
      GraphHook::Options{impl->layout, info.layer_readers, options.deterministic,
                         options.audit_reads, options.capture, options.edit_rows, options.cancel},
      std::move(workspace));

  engine::ContextRequest request;
  request.n_ctx = std::max(options.n_ubatch, kMinEngineCells);
  request.n_ubatch = options.n_ubatch;
  request.n_sequences = options.max_sequences;
  request.n_threads = n_threads;
  request.n_threads_batch = n_threads_batch;
  request.callback = &GraphHook::on_node;
  request.callback_data = impl->hook.get();
  request.abort = &GraphHook::should_abort;
  request.abort_data = impl->hook.get();
  impl->context = engine::make_context(model.impl().engine_model.get(), request);
  if (!impl->context) {
    return Error{ErrorCode::kEngine, "session: the engine could not make a context of " +
                                         std::to_string(request.n_ctx) +
                                         " tokens: " + engine::take_errors()};
  }
  return Session(std::move(impl));
}

const Model& Session::model() const noexcept { return impl_->model; }

const StoreLayout& Session::layout() const noexcept { return impl_->layout; }

Result<ContextMemory> Session::begin(const MemorySpec& spec) const {
  VOLVELLE_RETURN_IF_ERROR(require_supported(spec));
  if (spec.topk && spec.topk->anchor == "block") {
    const Result<BlockFrame> frame = make_block_frame(impl_->model.info().rope);
    if (!frame.ok()) return frame.error();
  }
  return ContextMemory::create(impl_->layout, spec);
}

Status Session::step(ContextMemory& memory, std::span<const TokenId> tokens, Logits want) {
  const SequenceStep one{&memory, tokens, want};
  return step(std::span(&one, 1));
}

Status Session::step(std::span<const SequenceStep> steps) {
  Impl& self = *impl_;
  self.logit_rows.clear();
  self.first_logits.assign(1, 0);
  VOLVELLE_RETURN_IF_ERROR(self.check(steps));
  std::vector<UbatchPart> parts;  // of the ubatch that is being filled
  std::int64_t room = self.options.n_ubatch;
  const auto flush = [&]() -> Status {
    if (parts.empty()) return {};
    room = self.options.n_ubatch;
    return self.run_ubatch(std::exchange(parts, {}));
  };
  std::int64_t n_logits = 0;
  for (const SequenceStep& step : steps) {
    const auto n = static_cast<std::int64_t>(step.tokens.size());
    for (std::int64_t done = 0; done < n;) {
      const std::int64_t size = std::min(room, n - done);
      const bool last = done + size == n;
      const Logits want = step.want == Logits::kLast && !last ? Logits::kNone : step.want;
      parts.push_back(
          {step.memory,
           step.tokens.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(size)),
           want});
      done += size;
      room -= size;
      if (room == 0) VOLVELLE_RETURN_IF_ERROR(flush());
    }
    n_logits += step.want == Logits::kAll ? n : step.want == Logits::kLast && n > 0 ? 1 : 0;
    self.first_logits.push_back(n_logits);
  }
  return flush();
}

/// A certificate from a dither speaks of queries that do not depend on it. A layer that reads the
/// codes of a lower one has queries that do.
Status Session::Impl::check_dither(const ContextMemory& memory) const {
  const MemoryIndex* const index = memory.index();
  if (index == nullptr || index->plan().options.dither == Dither::kNone) return {};
  for (std::size_t i = 0; i < model.info().layer_readers.size(); ++i) {
    if (model.info().layer_readers[i] <= 1 ||
        !index->serves(LayerIndex(static_cast<std::int64_t>(i))))
      continue;
    return Error{ErrorCode::kUnsupported,
                 "run: cert=dither promises nothing for a model whose layers share rows (layer " +
                     std::to_string(i) + " is read by " +
                     std::to_string(model.info().layer_readers[i]) + "); use cert=exact"};
  }
  return {};
}

Status Session::Impl::check(std::span<const SequenceStep> steps) const {
  if (std::ssize(steps) > options.max_sequences) {
    return Error{ErrorCode::kInvalidArgument, "run: " + std::to_string(steps.size()) +
                                                  " memories in one step, but the session " +
                                                  "was made for " +
                                                  std::to_string(options.max_sequences)};
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].memory == nullptr) throw std::logic_error("Session::step(): a step has no memory");
    const ContextMemory& memory = *steps[i].memory;
    const auto same = [&](const SequenceStep& other) { return other.memory == &memory; };
    if (std::any_of(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(i), same)) {
      return Error{ErrorCode::kInvalidArgument, "run: a memory is named twice in one step"};
    }
    if (options.deterministic && memory.index() != nullptr) {
      return Error{
          ErrorCode::kInvalidArgument,
          "run: deterministic mode and topk contradict each other: what is read from codes "
          "depends on the size of a batch; leave one out"};
    }
    VOLVELLE_RETURN_IF_ERROR(check_dither(memory));
    if (memory.layout() != layout) {
      return Error{ErrorCode::kMismatch,
                   "run: the memory's layers or storage types are not those of this session"};
    }
    const auto n = static_cast<std::int64_t>(steps[i].tokens.size());
    const std::int64_t limit = model.info().context_length;
    if (memory.length() + n > limit) return context_exceeded(memory.length(), n, limit);
    const std::int64_t known = memory.index() == nullptr ? 0 : memory.index()->position_limit();
    if (known > 0 && memory.length() + n > known) {
      return Error{
          ErrorCode::kContextExceeded,
          "run: the calibration of the index knows positions below " + std::to_string(known) +
              ", but the memory would grow to " + std::to_string(memory.length() + n) +
              " tokens; make one from a longer text, or let the memory make its own codes"};
    }
    for (const TokenId token : steps[i].tokens) {
      if (token >= 0 && token < model.info().n_vocab) continue;
      return Error{ErrorCode::kInvalidArgument,
                   "run: token " + std::to_string(token) + " is not in the vocabulary of " +
                       std::to_string(model.info().n_vocab) + " tokens"};
    }
  }
  return {};
}

/// Makes the indexes that are due before the first tokens are decoded, and scratch for them.
Status Session::Impl::prepare_indexes(std::span<const UbatchPart> parts) {
  std::int64_t n_tiles = 0;
  for (const UbatchPart& part : parts) {
    if (part.memory->index() == nullptr) continue;
    // A text that is only read is read exactly; the index waits for what comes after it.
    if (part.want != Logits::kNone && std::ssize(part.tokens) <= kDecodeMaxQueries)
      VOLVELLE_RETURN_IF_ERROR(part.memory->prepare_index(n_threads, model.info().rope));
    n_tiles = std::max(n_tiles, part.memory->index()->n_tiles() + 1);
  }
  if (n_tiles == 0) return {};
  if (!hook->has_topk_workspace()) {
    const HeadDims dims = largest_dims(model.info());
    VOLVELLE_ASSIGN_OR_RETURN(
        TopkWorkspace workspace,
        TopkWorkspace::create(max_threads, model.info().n_heads, dims.k, dims.v));
    hook->set_topk_workspace(std::move(workspace));
  }
  return hook->reserve_tiles(n_tiles);
}

Status Session::prepare_index(ContextMemory& memory, IndexDiagnostics* diagnostics) const {
  return memory.prepare_index(impl_->n_threads, impl_->model.info().rope, diagnostics);
}

ReadStatistics Session::take_read_statistics() noexcept {
  return impl_->hook->take_read_statistics();
}

Status Session::Impl::run_ubatch(std::span<const UbatchPart> parts) {
  if (options.cancel.cancelled()) return Error{ErrorCode::kCancelled, "run: interrupted"};
  VOLVELLE_RETURN_IF_ERROR(prepare_indexes(parts));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Status begun = parts[i].memory->begin(parts[i].tokens);
    if (begun.ok()) continue;
    for (std::size_t done = 0; done < i; ++done) parts[done].memory->rollback();
    return begun;
  }
  const std::int64_t logits_before = logit_rows.size();
  hook->begin_ubatch(parts);
  const Status decoded = decode(parts);
  const Status served = hook->finish_ubatch(decoded.ok());
  Status kept = decoded.ok() && served.ok() ? keep_logits(parts) : Status();
  for (const UbatchPart& part : parts) {
    if (decoded.ok() && served.ok() && kept.ok()) kept = part.memory->extend_index();
  }
  if (decoded.ok() && served.ok() && kept.ok()) {
    for (const UbatchPart& part : parts) part.memory->commit();
    return {};
  }
  for (const UbatchPart& part : parts) part.memory->rollback();
  logit_rows.truncate(logits_before);
  if (options.cancel.cancelled()) return Error{ErrorCode::kCancelled, "run: interrupted"};
  // A problem that the hook found also aborts the engine; the hook's sentence is the one that
  // explains.
  if (!served.ok()) return served;
  return decoded.ok() ? kept : decoded;
}

Status Session::Impl::decode(std::span<const UbatchPart> parts) {
  // The engine's cells of the ubatch before are of no use to anyone; with its sequences empty a
  // batch may start anywhere.
  llama_memory_seq_rm(llama_get_memory(context.get()), -1, -1, -1);
  batch.clear();
  for (std::size_t s = 0; s < parts.size(); ++s) {
    const std::int64_t first = parts[s].memory->length();
    for (std::int64_t i = 0; i < std::ssize(parts[s].tokens); ++i) {
      batch.add(parts[s].tokens[static_cast<std::size_t>(i)], first + i, static_cast<int>(s),
                wants_logits(parts[s], i));
    }
  }
  const int rc = llama_decode(context.get(), batch.get());
  if (rc == 0) return {};
  return Error{ErrorCode::kEngine,
               "run: the engine failed with code " + std::to_string(rc) + " at position " +
                   std::to_string(parts.front().memory->length()) + " " + engine::take_errors()};
}

/// Weights can be damaged behind attention too; a sampler would make a token of NaN.
Status Session::Impl::keep_logits(std::span<const UbatchPart> parts) {
  int token = 0;
  for (const UbatchPart& part : parts) {
    for (std::int64_t i = 0; i < std::ssize(part.tokens); ++i, ++token) {
      if (!wants_logits(part, i)) continue;
      if (all_finite(logit_rows.append(context.get(), token))) continue;
      return Error{ErrorCode::kNumeric,
                   "run: the model's logits hold NaN or infinity; the model file is damaged or its "
                   "numbers overflow"};
    }
  }
  return {};
}

std::span<const float> Session::sequence_logits(std::size_t s, std::int64_t i) const {
  const std::vector<std::int64_t>& first = impl_->first_logits;
  if (s + 1 >= first.size() || i < 0 || i >= first[s + 1] - first[s])
    throw std::logic_error("Session::logits: the last step kept no such row");
  return impl_->logit_rows.row(first[s] + i);
}

void Session::set_observer(AttentionObserver observer) {
  impl_->hook->set_observer(std::move(observer));
}

double Session::take_attention_seconds() noexcept { return impl_->hook->take_attention_seconds(); }

std::int64_t Session::engine_context_tokens() const noexcept {
  return llama_n_ctx(impl_->context.get());
}

}  // namespace volvelle
