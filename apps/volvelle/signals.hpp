// Ctrl-C, SIGTERM and SIGHUP ask for a clean stop; a second Ctrl-C or SIGTERM has the system's
// default effect. Writes to a pipe without a reader, or beyond a limit on file sizes, are errors of
// those writes.
#pragma once

#include "volvelle/base/cancel.hpp"

namespace volvelle::cli {

/// From now on the first such signal sets the token's flag and interrupts blocking system calls.
CancelToken cancel_on_signals();

/// For programs that go on after a Ctrl-C. From now on the first one sets the flag only until
/// take_interrupt() is called, a second one before that asks for the end, and a third one has the
/// default effect. The other signals always ask for the end.
void survive_interrupts();

enum class Interrupt { kNone, kStop, kEnd };
/// What was asked for since the last call. With kStop the flag is cleared; with kEnd it stays, also
/// if it was set by something else than a signal.
Interrupt take_interrupt();

}  // namespace volvelle::cli
