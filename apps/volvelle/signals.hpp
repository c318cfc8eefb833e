// Ctrl-C and SIGTERM ask for a clean stop; the second one has the system's default effect.
#pragma once

#include "volvelle/base/cancel.hpp"

namespace volvelle::cli {

/// From now on the first SIGINT or SIGTERM sets `token`'s flag, which must live until exit.
void cancel_on_signals(const CancelToken& token);

}  // namespace volvelle::cli
