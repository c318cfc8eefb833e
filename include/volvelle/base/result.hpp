// Expected failures as values: Result<T> holds a T or an Error.
//
// An Error has a code for programs and one sentence for people: it begins with the operation, says
// what was expected and what was found, and what to do. Looking at the value of a failed Result (or
// at the error of a good one) is a bug of the caller and throws std::logic_error.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

namespace volvelle {

enum class ErrorCode {
  kInvalidArgument,    // a flag, spec string or parameter makes no sense
  kNotFound,           // a file, tensor or key does not exist
  kIo,                 // the operating system refused (full disk, permissions, short read)
  kCorrupt,            // a file is damaged or is not what it says
  kMismatch,           // two good things do not belong together (memory file and model)
  kUnsupported,        // known, but not served by this version
  kContextExceeded,    // more tokens than the model or the memory can hold
  kResourceExhausted,  // out of memory or over the memory budget
  kCancelled,          // the user interrupted
  kVerification,       // a check or certificate failed
  kEngine,             // llama.cpp reported a failure
  kNumeric,            // NaN or infinity where none may be
};

struct Error {
  ErrorCode code;
  std::string message;  // one line, no trailing newline
};

template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }

  T& value() & { return require_value(), std::get<0>(state_); }
  const T& value() const& { return require_value(), std::get<0>(state_); }
  T&& value() && { return require_value(), std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const& {
    if (ok()) throw std::logic_error("Result::error() of a good result");
    return std::get<1>(state_);
  }

 private:
  void require_value() const {
    if (!ok())
      throw std::logic_error("Result::value() of an error: " + std::get<1>(state_).message);
  }
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)), failed_(true) {}

  bool ok() const noexcept { return !failed_; }
  explicit operator bool() const noexcept { return ok(); }
  void value() const {
    if (failed_) throw std::logic_error("Result::value() of an error: " + error_.message);
  }
  const Error& error() const& {
    if (!failed_) throw std::logic_error("Result::error() of a good result");
    return error_;
  }

 private:
  Error error_{ErrorCode::kInvalidArgument, {}};
  bool failed_ = false;
};

using Status = Result<void>;

/// The name of a code, for JSON and logs ("corrupt", "context_exceeded", ...).
const char* to_string(ErrorCode code) noexcept;

}  // namespace volvelle
