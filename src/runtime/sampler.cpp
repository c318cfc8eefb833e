// A chain as in llama.cpp's own programs: top-k, top-p, min-p, temperature, then a draw; or greedy.
// Numbers out of range are errors, not clamped: a typo must not change the answer silently. Cost:
// O(n_vocab) per token.
#include "volvelle/runtime/sampler.hpp"

#include <vector>

#include "runtime/engine.hpp"

namespace volvelle {

struct Sampler::Impl {
  engine::SamplerPtr chain;
  std::vector<llama_token_data> candidates;
};

Sampler::Sampler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Sampler::Sampler(Sampler&&) noexcept = default;
Sampler& Sampler::operator=(Sampler&&) noexcept = default;
Sampler::~Sampler() = default;

Result<Sampler> Sampler::create(const SamplerOptions& options) {
  const auto out_of_range = [](const char* name, float value) {
    return Error{
        ErrorCode::kInvalidArgument,
        std::string("sampler: ") + name + " must be between 0 and 1, got " + std::to_string(value)};
  };
  if (!(options.temperature <= 100.0f)) {
    return Error{ErrorCode::kInvalidArgument, "sampler: temperature must be at most 100, got " +
                                                  std::to_string(options.temperature)};
  }
  if (!(options.top_p >= 0.0f && options.top_p <= 1.0f))
    return out_of_range("top-p", options.top_p);
  if (!(options.min_p >= 0.0f && options.min_p <= 1.0f))
    return out_of_range("min-p", options.min_p);

  auto impl = std::make_unique<Impl>();
  impl->chain.reset(llama_sampler_chain_init(llama_sampler_chain_default_params()));
  llama_sampler* const chain = impl->chain.get();
  if (options.temperature <= 0.0f) {
    llama_sampler_chain_add(chain, llama_sampler_init_greedy());
    return Sampler(std::move(impl));
  }
  llama_sampler_chain_add(chain, llama_sampler_init_top_k(options.top_k));
  llama_sampler_chain_add(chain, llama_sampler_init_top_p(options.top_p, 1));
  llama_sampler_chain_add(chain, llama_sampler_init_min_p(options.min_p, 1));
  llama_sampler_chain_add(chain, llama_sampler_init_temp(options.temperature));
  llama_sampler_chain_add(chain, llama_sampler_init_dist(options.seed));
  return Sampler(std::move(impl));
}

TokenId Sampler::sample(std::span<const float> logits) {
  std::vector<llama_token_data>& candidates = impl_->candidates;
  candidates.resize(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i)
    candidates[i] = {static_cast<llama_token>(i), logits[i], 0.0f};
  llama_token_data_array array{candidates.data(), candidates.size(), -1, false};
  llama_sampler_apply(impl_->chain.get(), &array);
  const llama_token token = array.data[array.selected].id;
  llama_sampler_accept(impl_->chain.get(), token);
  return token;
}

}  // namespace volvelle
