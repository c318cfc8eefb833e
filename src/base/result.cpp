// Names of error codes for JSON and logs. The switch has no default, so a new code without a name
// is a compiler warning. The names are part of the interface: scripts compare them.
#include "volvelle/base/result.hpp"

namespace volvelle {

const char* to_string(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kMismatch:
      return "mismatch";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kContextExceeded:
      return "context_exceeded";
    case ErrorCode::kResourceExhausted:
      return "resource_exhausted";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kVerification:
      return "verification";
    case ErrorCode::kEngine:
      return "engine";
    case ErrorCode::kNumeric:
      return "numeric";
  }
  return "unknown";
}

}  // namespace volvelle
