// Where messages go. The library never prints: it hands every message to the sink that the program
// gave it.
#pragma once

#include <functional>
#include <string_view>

namespace volvelle {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Called from any thread; must not throw. An empty function drops the message.
using LogSink = std::function<void(LogLevel, std::string_view message)>;

}  // namespace volvelle
