// One-time start of llama.cpp, its log, and contexts with the settings that all our uses share. The
// log is process-wide by llama.cpp's design; error lines are kept, because many calls of the engine
// only return null.
#include "runtime/engine.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <thread>
#include <utility>

#include "io/message.hpp"

namespace volvelle::engine {
namespace {

struct LogState {
  std::mutex mutex;
  LogSink sink;
  std::string line;    // messages may arrive in pieces
  std::string errors;  // since the last take_errors(): the first line is the one that explains
};

LogState& log_state() {
  static LogState* const state = new LogState;  // never destroyed: the engine may log during exit
  return *state;
}

LogLevel level_of(ggml_log_level level) {
  switch (level) {
    case GGML_LOG_LEVEL_ERROR:
      return LogLevel::kError;
    case GGML_LOG_LEVEL_WARN:
      return LogLevel::kWarning;
    case GGML_LOG_LEVEL_INFO:
      return LogLevel::kInfo;
    default:
      return LogLevel::kDebug;
  }
}

void on_engine_log(ggml_log_level level, const char* text, void*) {
  LogState& state = log_state();
  const std::lock_guard lock(state.mutex);
  state.line += text;
  if (state.line.empty() || state.line.back() != '\n') return;
  state.line.pop_back();
  if (level == GGML_LOG_LEVEL_ERROR && state.errors.size() < 1000) {
    // The line may quote a file, and so hold anything.
    state.errors += (state.errors.empty() ? "" : "; ") + io::printable(state.line);
  }
  if (state.sink) state.sink(level_of(level), state.line);
  state.line.clear();
}

/// Backends are usually linked in. Where they are modules, only those beside the engine's library
/// are loaded: the engine's own search would also run code from the current folder.
void load_backends() {
  if (ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) != nullptr) return;
  Dl_info library;
  if (dladdr(reinterpret_cast<const void*>(&ggml_backend_load_all_from_path), &library) == 0)
    return;
  const std::filesystem::path folder = std::filesystem::path(library.dli_fname).parent_path();
  ggml_backend_load_all_from_path(folder.c_str());
}

}  // namespace

void initialize() {
  static std::once_flag once;
  std::call_once(once, [] {
    llama_log_set(on_engine_log, nullptr);
    llama_backend_init();
    load_backends();
  });
}

void set_log_sink(LogSink sink) {
  LogState& state = log_state();
  const std::lock_guard lock(state.mutex);
  state.sink = std::move(sink);
}

std::string take_errors() {
  LogState& state = log_state();
  const std::lock_guard lock(state.mutex);
  return std::exchange(state.errors, {});
}

void Batch::add(int token, std::int64_t position, int sequence, bool logits) noexcept {
  const int i = batch_.n_tokens++;
  batch_.token[i] = token;
  batch_.pos[i] = static_cast<llama_pos>(position);
  batch_.n_seq_id[i] = 1;
  batch_.seq_id[i][0] = sequence;
  batch_.logits[i] = static_cast<int8_t>(logits);
}

ContextPtr make_context(llama_model* model, const ContextRequest& request) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<std::uint32_t>(request.n_ctx);
  params.n_batch = static_cast<std::uint32_t>(request.n_ubatch);
  params.n_ubatch = static_cast<std::uint32_t>(request.n_ubatch);
  params.n_seq_max = static_cast<std::uint32_t>(request.n_sequences);
  params.n_threads = request.n_threads;
  params.n_threads_batch = request.n_threads_batch;
  params.flash_attn_type =
      request.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = request.kv_type;
  params.type_v = request.kv_type;
  params.cb_eval = request.callback;
  params.cb_eval_user_data = request.callback_data;
  params.abort_callback = request.abort;
  params.abort_callback_data = request.abort_data;
  params.offload_kqv = false;
  params.kv_unified = true;
  params.no_perf = true;
  return ContextPtr(llama_init_from_model(model, params));
}

int thread_count(int n) noexcept {
  if (n > 0) return n;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace volvelle::engine
