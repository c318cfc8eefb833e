// See speed_variant.hpp. Only Stepper::step() is inside the clock: restoring, and the pages a clone
// gives back, are not. A step asks for the last token's logits on both sides, as prefill before an
// answer and decoding do.
#include "eval/speed_variant.hpp"

#include "base/clock.hpp"
#include "base/result_macros.hpp"

namespace volvelle {
namespace {

class MemoryVariant final : public SpeedVariant {
 public:
  MemoryVariant(Session session, ContextMemory memory)
      : session_(std::move(session)), memory_(std::move(memory)) {}

  std::string name() const override { return to_string(memory_.spec()); }
  bool is_engine() const override { return false; }
  std::int64_t depth() const override { return memory_.length(); }

  Status advance(std::span<const TokenId> tokens) override {
    stepper_.reset();
    VOLVELLE_RETURN_IF_ERROR(session_.step(memory_, tokens, Logits::kNone));
    return session_.prepare_index(memory_);  // once, and not in the clone of every repetition
  }

  Result<Stepper*> restore() override {
    stepper_ = make_memory_stepper(session_, memory_.clone());
    return stepper_.get();
  }

 private:
  Session session_;
  ContextMemory memory_;
  std::unique_ptr<Stepper> stepper_;
};

class EngineVariant final : public SpeedVariant {
 public:
  EngineVariant(std::unique_ptr<Stepper> stepper, bool flash_attention)
      : stepper_(std::move(stepper)), flash_attention_(flash_attention) {}

  std::string name() const override { return flash_attention_ ? "llama flash" : "llama no-flash"; }
  bool is_engine() const override { return true; }
  std::int64_t depth() const override { return depth_; }

  Status advance(std::span<const TokenId> tokens) override {
    VOLVELLE_RETURN_IF_ERROR(stepper_->truncate(depth_));
    VOLVELLE_RETURN_IF_ERROR(stepper_->step(tokens, Logits::kNone));
    depth_ = stepper_->length();
    return {};
  }

  Result<Stepper*> restore() override {
    VOLVELLE_RETURN_IF_ERROR(stepper_->truncate(depth_));
    return stepper_.get();
  }

 private:
  std::unique_ptr<Stepper> stepper_;
  bool flash_attention_ = true;
  std::int64_t depth_ = 0;
};

}  // namespace

Result<std::unique_ptr<SpeedVariant>> make_memory_variant(const Model& model,
                                                          const std::string& spec,
                                                          const SpeedOptions& options) {
  VOLVELLE_ASSIGN_OR_RETURN(const MemorySpec parsed, parse_memory_spec(spec));
  VOLVELLE_RETURN_IF_ERROR(require_supported(parsed));
  SessionOptions session_options;
  session_options.n_threads = session_options.n_threads_batch = options.n_threads;
  session_options.n_ubatch = options.n_ubatch;
  session_options.deterministic = options.deterministic;
  session_options.cancel = options.cancel;
  VOLVELLE_ASSIGN_OR_RETURN(session_options.kv, kv_types(parsed));
  VOLVELLE_ASSIGN_OR_RETURN(Session session, Session::create(model, session_options));
  VOLVELLE_ASSIGN_OR_RETURN(ContextMemory memory, session.begin(parsed));
  return std::unique_ptr<SpeedVariant>(
      std::make_unique<MemoryVariant>(std::move(session), std::move(memory)));
}

Result<std::unique_ptr<SpeedVariant>> make_engine_variant(const Model& model, std::int64_t n_ctx,
                                                          bool flash_attention,
                                                          const SpeedOptions& options) {
  EngineStepperOptions engine;
  engine.n_ctx = n_ctx;
  engine.n_threads = engine.n_threads_batch = options.n_threads;
  engine.n_ubatch = options.n_ubatch;
  engine.flash_attention = flash_attention;
  VOLVELLE_ASSIGN_OR_RETURN(std::unique_ptr<Stepper> stepper, make_engine_stepper(model, engine));
  return std::unique_ptr<SpeedVariant>(
      std::make_unique<EngineVariant>(std::move(stepper), flash_attention));
}

Result<SpeedSample> measure(SpeedVariant& variant, std::span<const TokenId> prefill,
                            std::span<const TokenId> decode) {
  SpeedSample sample;
  if (!prefill.empty()) {
    VOLVELLE_ASSIGN_OR_RETURN(Stepper* const stepper, variant.restore());
    stepper->take_attention_seconds();  // forgets what came before
    const auto start = Clock::now();
    VOLVELLE_RETURN_IF_ERROR(stepper->step(prefill, Logits::kLast));
    sample.prefill = seconds_since(start);
    sample.prefill_attention = stepper->take_attention_seconds();
  }
  VOLVELLE_ASSIGN_OR_RETURN(Stepper* const stepper, variant.restore());
  stepper->take_attention_seconds();
  const auto start = Clock::now();
  for (std::size_t i = 0; i < decode.size(); ++i) {
    VOLVELLE_RETURN_IF_ERROR(stepper->step(decode.subspan(i, 1), Logits::kLast));
  }
  const auto n = static_cast<double>(decode.size());
  sample.decode = seconds_since(start) / n;
  sample.attention = stepper->take_attention_seconds() / n;
  return sample;
}

}  // namespace volvelle
