// A Stepper on our own memory. The session is shared: several steppers may use one in turn, each
// with its own memory. Truncation drops references to rows, nothing is recomputed.
#include "volvelle/runtime/stepper.hpp"

namespace volvelle {
namespace {

class MemoryStepper final : public Stepper {
 public:
  MemoryStepper(Session& session, ContextMemory memory)
      : session_(session), memory_(std::move(memory)) {}

  Status step(std::span<const TokenId> tokens, Logits want) override {
    return session_.step(memory_, tokens, want);
  }
  std::span<const float> logits(std::int64_t i) const override { return session_.logits(i); }
  std::int64_t length() const override { return memory_.length(); }
  Status truncate(std::int64_t length) override { return memory_.truncate(length); }
  double take_attention_seconds() override { return session_.take_attention_seconds(); }

 private:
  Session& session_;
  ContextMemory memory_;
};

}  // namespace

std::unique_ptr<Stepper> make_memory_stepper(Session& session, ContextMemory memory) {
  return std::make_unique<MemoryStepper>(session, std::move(memory));
}

}  // namespace volvelle
