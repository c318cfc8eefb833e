// Flags that decide how an answer is made: llama.cpp's sampler flags under its names, its stop
// strings and its limit. Ranges are checked by the library, so that there is one list of them; what
// a flag can not change, because of another one, is said in a warning.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "command.hpp"
#include "volvelle/runtime/sampler.hpp"

namespace volvelle::cli {

struct SamplerFlags {
  std::int64_t n_predict = 128;
  SamplerOptions options;          // complete after prepare_sampling()
  std::vector<std::string> stops;  // likewise
  // As they were written.
  std::int64_t seed = 0;
  std::string samplers;
  std::vector<std::string> biases;
  std::vector<std::string> breakers;
  std::string grammar;
  std::string grammar_file;
  std::vector<const CLI::Option*> declared;
};
void add_sampler_flags(CLI::App& app, SamplerFlags& flags);

/// Reads what was written into `options` and `stops`; a random seed is chosen here and said. What
/// makes no sense is a usage error.
Status prepare_sampling(SamplerFlags& flags, Console& console);

/// Warns of flags that have no effect on this model.
void warn_of_unused(const SamplerFlags& flags, const Model& model, Console& console);

/// The seed, if any draw depends on it.
std::optional<std::uint32_t> used_seed(const SamplerOptions& options);

/// A sampler for one answer. Why the engine refuses a grammar is part of the error.
Result<Sampler> make_sampler(const Model& model, const SamplerOptions& options);

}  // namespace volvelle::cli
