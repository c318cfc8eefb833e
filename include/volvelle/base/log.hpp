// Where messages go: the library never prints, it hands every message to the sink of the program.
// The engine has one process-wide log, so the sink given last receives its messages. A sink may be
// called from any thread.
#pragma once

#include <functional>
#include <string_view>

namespace volvelle {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Called from any thread; must not throw. An empty function drops the message.
using LogSink = std::function<void(LogLevel, std::string_view message)>;

}  // namespace volvelle
