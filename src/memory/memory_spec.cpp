// Canonical printing of memory specs, and what this version serves.
#include "volvelle/memory/memory_spec.hpp"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/result_macros.hpp"
#include "memory/memory_spec_check.hpp"
#include "volvelle/memory/memory_index.hpp"

namespace volvelle {
namespace {

constexpr const char* kSupported =
    "full, full+topk(k=N,...), sink(n)+window(n[,block=B]), swa(full), kv(k=TYPE,v=TYPE)";

// Shortest text that reads back as the same double.
std::string number_text(double value) {
  std::array<char, 32> buffer{};
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return error == std::errc{} ? std::string(buffer.data(), end) : std::string();
}

std::string quoted(std::string_view path) {
  std::string out = "\"";
  for (const char c : path) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out += '"';
}

void append_term(std::string& out, const std::string& term) {
  if (!out.empty()) out += '+';
  out += term;
}

std::string window_text(const WindowTerm& window) {
  std::string out = "window(" + std::to_string(window.tokens);
  if (window.block != WindowTerm{}.block) out += ",block=" + std::to_string(window.block);
  return out + ")";
}

std::string topk_text(const TopkTerm& topk) {
  const TopkTerm defaults;
  std::string arguments;
  const auto add = [&](const char* key, const std::string& value) {
    if (!arguments.empty()) arguments += ',';
    arguments += std::string(key) + "=" + value;
  };
  if (topk.k) add("k", std::to_string(*topk.k));
  if (topk.max_error) add("max_error", number_text(*topk.max_error));
  if (topk.index != defaults.index) add("index", topk.index);
  if (topk.bits) add("bits", std::to_string(*topk.bits));
  if (topk.rank) add("rank", std::to_string(*topk.rank));
  if (topk.min) add("min", std::to_string(*topk.min));
  if (topk.tail != defaults.tail) add("tail", topk.tail);
  if (topk.cert != defaults.cert) add("cert", topk.cert);
  if (topk.anchor != defaults.anchor) add("anchor", topk.anchor);
  return "topk(" + arguments + ")";
}

std::string tail_text(const TailTerm& tail) {
  std::string out = "tail(" + tail.kind;
  if (tail.entries) out += ",entries=" + std::to_string(*tail.entries);
  return out + ")";
}

std::string store_text(const StoreTerm& store) {
  if (store.kind == "disk") return "store(disk=" + quoted(store.path) + ")";
  return "store(" + store.kind + ")";
}

Error not_built(const std::string& what) {
  return Error{
      ErrorCode::kUnsupported,
      "memory spec: " + what + " is not built yet in this version; supported: " + kSupported};
}

}  // namespace

MemorySpec MemorySpec::full_memory() {
  MemorySpec spec;
  spec.full = true;
  return spec;
}

std::string to_string(const MemorySpec& spec) {
  std::string out;
  if (spec.full) append_term(out, "full");
  if (spec.sink) append_term(out, "sink(" + std::to_string(*spec.sink) + ")");
  if (spec.window) append_term(out, window_text(*spec.window));
  if (spec.topk) append_term(out, topk_text(*spec.topk));
  if (spec.tail) append_term(out, tail_text(*spec.tail));
  if (spec.store) append_term(out, store_text(*spec.store));
  if (spec.swa_full) append_term(out, "swa(full)");
  if (spec.kv) append_term(out, "kv(k=" + spec.kv->k + ",v=" + spec.kv->v + ")");
  if (spec.dense_layers) {
    append_term(out, "dense_layers=" + std::to_string(spec.dense_layers->first) + "-" +
                         std::to_string(spec.dense_layers->last));
  }
  return out;
}

namespace {

Status require_supported_topk(const MemorySpec& spec) {
  if (!spec.full) return not_built("term 'topk' without 'full'");
  if (spec.topk->index == "exact") return not_built("index=exact of term 'topk'");
  const Result<IndexPlan> plan = index_plan(spec);
  return plan.ok() ? Status() : Status(plan.error());
}

}  // namespace

Status require_supported(const MemorySpec& spec) {
  VOLVELLE_RETURN_IF_ERROR(memory_spec_detail::check_consistent(spec));
  if (spec.topk) VOLVELLE_RETURN_IF_ERROR(require_supported_topk(spec));
  if (spec.tail) return not_built("term 'tail'");
  if (spec.store) return not_built("term 'store'");
  if (spec.dense_layers && !spec.topk) return not_built("term 'dense_layers' without 'topk'");
  if (!spec.kv) return {};
  for (const std::string& name : {spec.kv->k, spec.kv->v}) {
    if (!parse_element_type(name)) return not_built("storage type '" + name + "' of term 'kv'");
  }
  return {};
}

Result<KvTypes> kv_types(const MemorySpec& spec) {
  if (!spec.kv) return KvTypes{};
  const auto k = parse_element_type(spec.kv->k);
  const auto v = parse_element_type(spec.kv->v);
  if (!k || !v) {
    return not_built("storage type '" + (k ? spec.kv->v : spec.kv->k) + "' of term 'kv'");
  }
  return KvTypes{*k, *v};
}

}  // namespace volvelle
