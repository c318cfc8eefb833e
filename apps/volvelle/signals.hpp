// Ctrl-C, SIGTERM and SIGHUP ask for a clean stop; a second Ctrl-C or SIGTERM has the system's
// default effect. Writes to a pipe without a reader, or beyond a limit on file sizes, are errors of
// those writes.
#pragma once

#include "volvelle/base/cancel.hpp"

namespace volvelle::cli {

/// From now on the first such signal sets the token's flag and interrupts blocking system calls.
CancelToken cancel_on_signals();

}  // namespace volvelle::cli
