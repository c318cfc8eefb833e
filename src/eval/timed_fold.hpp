// A fold whose steps are timed, for the cost law of reading.
#pragma once

#include <chrono>
#include <span>
#include <vector>

#include "eval/progress_meter.hpp"
#include "volvelle/attention/fold.hpp"
#include "volvelle/eval/cost_law.hpp"
#include "volvelle/runtime/session.hpp"

namespace volvelle {

/// Reads `tokens` into `memory` in chunks and adds what each took to `times`.
inline Status fold_timed(Session& session, ContextMemory& memory, std::span<const TokenId> tokens,
                         std::int64_t chunk, ProgressMeter& meter, std::vector<ChunkTime>& times) {
  return fold_run(memory, tokens, chunk,
                  [&](ContextMemory& state, std::span<const TokenId> part, bool) -> Status {
                    ChunkTime time{state.length(), std::ssize(part), 0};
                    const auto start = std::chrono::steady_clock::now();
                    Status stepped = session.step(state, part, Logits::kNone);
                    if (!stepped.ok()) return stepped;
                    const auto end = std::chrono::steady_clock::now();
                    time.seconds = std::chrono::duration<double>(end - start).count();
                    times.push_back(time);
                    meter.add(time.tokens);
                    return {};
                  });
}

}  // namespace volvelle
