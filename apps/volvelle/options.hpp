// Flags that several subcommands share, under llama.cpp's names, and what they mean to the library.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "command.hpp"
#include "volvelle/memory/memory_spec.hpp"
#include "volvelle/runtime/model.hpp"
#include "volvelle/runtime/session.hpp"

namespace volvelle::cli {

/// Single-dash flags of several letters ("-ub"), which CLI11 does not know, become long ones.
std::vector<std::string> expand_short_flags(const std::vector<std::string>& arguments);

struct ModelFlags {
  std::string model;
  std::int64_t context = 0;  // 0: the model's own
  int threads = 0;
  int threads_batch = 0;
  int ubatch = 512;
  bool deterministic = false;
};
enum class ModelFlag { kRequired, kOptional };
void add_model_flags(CLI::App& app, ModelFlags& flags, ModelFlag required);
/// -m, -t and -ub only: for commands in which the others would do nothing.
void add_engine_flags(CLI::App& app, ModelFlags& flags, ModelFlag required);

struct MemoryFlags {
  std::string spec = "full";
  std::string type_k;
  std::string type_v;
  const CLI::Option* spec_option = nullptr;
  std::string calibration;  // a file, or nothing
};
void add_memory_flags(CLI::App& app, MemoryFlags& flags);
/// --calibration, for commands that begin a memory.
void add_calibration_flag(CLI::App& app, MemoryFlags& flags);
void add_cache_type_flags(CLI::App& app, MemoryFlags& flags);

/// The error of a flag that makes no sense: exit code 2.
Error usage_error(std::string message);

/// The spec that --memory, -ctk and -ctv describe together; a conflict, an unknown term or one that
/// this version does not build is a usage error. For a memory that exists already its spec,
/// `stored`, says what no flag says.
Result<MemorySpec> effective_spec(const MemoryFlags& flags);
Result<MemorySpec> effective_spec(const MemoryFlags& flags, const std::string& stored);

Result<Model> load_model(const std::filesystem::path& path, Console& console);
Result<Model> load_model(const ModelFlags& flags, Console& console);

/// Tokens that may be used: -c, or the model's context length. More than the model's is an error.
Result<std::int64_t> context_limit(const ModelFlags& flags, const Model& model);

Result<SessionOptions> session_options(const ModelFlags& flags, const MemorySpec& spec,
                                       Console& console);

}  // namespace volvelle::cli
