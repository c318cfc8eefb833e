// A session: an engine context of one ubatch, the hook, and the loop that moves tokens through
// them. A ubatch either becomes part of the memory as a whole or leaves no trace (begin, then
// commit or rollback), so errors and interrupts can not leave half a token behind.
#include "volvelle/runtime/session.hpp"

#include <algorithm>
#include <string>

#include "base/result_macros.hpp"
#include "runtime/graph_hook.hpp"
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

}  // namespace

struct Session::Impl {
  const Model& model;
  SessionOptions options;
  StoreLayout layout;
  std::unique_ptr<GraphHook> hook;
  engine::ContextPtr context;
  engine::Batch batch;
  std::vector<float> all_logits;       // [n_tokens of the last kAll step, n_vocab]
  const float* last_logits = nullptr;  // the engine's own buffer
  std::int64_t n_logits = 0;

  Impl(const Model& m, SessionOptions o)
      : model(m), options(std::move(o)), batch(options.n_ubatch) {}

  Status run_ubatch(ContextMemory& memory, std::span<const TokenId> tokens, bool last, bool all);
  Status decode(std::int64_t first_position, std::span<const TokenId> tokens, bool last, bool all);
  Status check_logits(std::int64_t n, bool last, bool all) const;
  void keep_logits(std::int64_t first, std::int64_t n, bool last, bool all);
};

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

Result<Session> Session::create(const Model& model, const SessionOptions& options) {
  if (options.n_ubatch < 1 || options.n_ubatch > 65536) {
    return Error{
        ErrorCode::kInvalidArgument,
        "session: ubatch size must be 1 to 65536 tokens, got " + std::to_string(options.n_ubatch)};
  }
  auto impl = std::make_unique<Impl>(model, options);
  const ModelInfo& info = model.info();
  impl->layout = StoreLayout{info.layers, options.kv.k, options.kv.v};

  const int n_threads = engine::thread_count(options.n_threads);
  const int n_threads_batch = options.n_threads_batch > 0 ? options.n_threads_batch : n_threads;
  int max_dim_k = 0;
  int max_dim_v = 0;
  for (const LayerShape& layer : info.layers) {
    max_dim_k = std::max(max_dim_k, layer.head_dim_k);
    max_dim_v = std::max(max_dim_v, layer.head_dim_v);
  }
  // Scratch for the larger of the two pools: the engine runs decode and prefill with different
  // numbers of threads.
  VOLVELLE_ASSIGN_OR_RETURN(
      auto workspace, AttendWorkspace::create(std::max(n_threads, n_threads_batch), info.n_heads,
                                              max_dim_k, max_dim_v));
  impl->hook = std::make_unique<GraphHook>(
      GraphHook::Options{impl->layout, options.deterministic, options.capture, options.cancel},
      std::move(workspace));

  engine::ContextRequest request;
  request.n_ctx = std::max(options.n_ubatch, kMinEngineCells);
  request.n_ubatch = options.n_ubatch;
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
  return ContextMemory::create(impl_->layout, spec);
}

Status Session::step(ContextMemory& memory, std::span<const TokenId> tokens, Logits want) {
  Impl& self = *impl_;
  self.n_logits = 0;
  if (tokens.empty()) return {};
  if (memory.layout() != self.layout) {
    return Error{ErrorCode::kMismatch,
                 "run: the memory's layers or storage types are not those of this session"};
  }
  const auto n = static_cast<std::int64_t>(tokens.size());
  const std::int64_t limit = self.model.info().context_length;
  if (memory.length() + n > limit) return context_exceeded(memory.length(), n, limit);
  for (const TokenId token : tokens) {
    if (token < 0 || token >= self.model.info().n_vocab) {
      return Error{ErrorCode::kInvalidArgument,
                   "run: token " + std::to_string(token) + " is not in the vocabulary of " +
                       std::to_string(self.model.info().n_vocab) + " tokens"};
    }
  }
  for (std::int64_t done = 0; done < n;) {
    const std::int64_t size = std::min<std::int64_t>(self.options.n_ubatch, n - done);
    const bool last = done + size == n;
    const std::span<const TokenId> ubatch =
        tokens.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(size));
    VOLVELLE_RETURN_IF_ERROR(
        self.run_ubatch(memory, ubatch, last && want != Logits::kNone, want == Logits::kAll));
    self.keep_logits(done, size, last && want == Logits::kLast, want == Logits::kAll);
    done += size;
  }
  return {};
}

Status Session::Impl::run_ubatch(ContextMemory& memory, std::span<const TokenId> tokens, bool last,
                                 bool all) {
  if (options.cancel.cancelled()) return Error{ErrorCode::kCancelled, "run: interrupted"};
  const std::int64_t first_position = memory.length();
  VOLVELLE_RETURN_IF_ERROR(memory.begin(tokens));
  hook->begin_ubatch(memory, static_cast<std::int64_t>(tokens.size()));
  const Status decoded = decode(first_position, tokens, last, all);
  const Status served = hook->finish_ubatch(decoded.ok());
  const Status finite = decoded.ok() && served.ok()
                            ? check_logits(static_cast<std::int64_t>(tokens.size()), last, all)
                            : Status();
  if (decoded.ok() && served.ok() && finite.ok()) {
    memory.commit();
    return {};
  }
  memory.rollback();
  n_logits = 0;
  if (options.cancel.cancelled()) return Error{ErrorCode::kCancelled, "run: interrupted"};
  // A problem that the hook found also aborts the engine; the hook's sentence is the one that
  // explains.
  if (!served.ok()) return served;
  return decoded.ok() ? finite : decoded;
}

Status Session::Impl::decode(std::int64_t first_position, std::span<const TokenId> tokens,
                             bool last, bool all) {
  // The engine's cells of the ubatch before are of no use to anyone; with its sequence empty a
  // batch may start anywhere.
  llama_memory_seq_rm(llama_get_memory(context.get()), 0, -1, -1);
  batch.assign(tokens.data(), static_cast<int>(tokens.size()), first_position, last, all);
  const int rc = llama_decode(context.get(), batch.get());
  if (rc == 0) return {};
  return Error{ErrorCode::kEngine, "run: the engine failed with code " + std::to_string(rc) +
                                       " at position " + std::to_string(first_position) + " " +
                                       engine::take_errors()};
}

/// Weights can be damaged behind attention too; a sampler would make a token of NaN.
Status Session::Impl::check_logits(std::int64_t n, bool last, bool all) const {
  for (std::int64_t i = all ? 0 : n - 1; i < n && (all || last); ++i) {
    const float* const row = llama_get_logits_ith(context.get(), static_cast<std::int32_t>(i));
    if (all_finite({row, static_cast<std::size_t>(model.info().n_vocab)})) continue;
    return Error{ErrorCode::kNumeric,
                 "run: the model's logits hold NaN or infinity; the model file is damaged or its "
                 "numbers overflow"};
  }
  return {};
}

void Session::Impl::keep_logits(std::int64_t first, std::int64_t n, bool last, bool all) {
  const auto n_vocab = static_cast<std::size_t>(model.info().n_vocab);
  if (last) {
    last_logits = llama_get_logits_ith(context.get(), static_cast<std::int32_t>(n - 1));
    n_logits = 1;
  }
  if (!all) return;
  all_logits.resize(static_cast<std::size_t>(first + n) * n_vocab);
  for (std::int64_t i = 0; i < n; ++i) {
    const float* row = llama_get_logits_ith(context.get(), static_cast<std::int32_t>(i));
    std::copy_n(row, n_vocab,
                all_logits.begin() +
                    static_cast<std::ptrdiff_t>(static_cast<std::size_t>(first + i) * n_vocab));
  }
  last_logits = nullptr;
  n_logits = first + n;
}

std::span<const float> Session::logits(std::int64_t i) const {
  const Impl& self = *impl_;
  if (i < 0 || i >= self.n_logits)
    throw std::logic_error("Session::logits: the last step kept no such row");
  const auto n_vocab = static_cast<std::size_t>(self.model.info().n_vocab);
  if (self.last_logits != nullptr) return {self.last_logits, n_vocab};
  return std::span<const float>(self.all_logits)
      .subspan(static_cast<std::size_t>(i) * n_vocab, n_vocab);
}

double Session::take_attention_seconds() noexcept { return impl_->hook->take_attention_seconds(); }

std::int64_t Session::engine_context_tokens() const noexcept {
  return llama_n_ctx(impl_->context.get());
}

}  // namespace volvelle
