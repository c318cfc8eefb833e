// Drawing; see progress_bar.hpp.
#include "progress_bar.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "std_streams.hpp"

namespace volvelle::cli {

namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr double kLineSeconds = 2.0;  // without a terminal: few lines, but a sign of life
constexpr int kBarWidth = 24;

std::string bar(double fraction) {
  const int filled = static_cast<int>(fraction * kBarWidth);
  return fmt::format("[{}{}]", std::string(filled, '#'), std::string(kBarWidth - filled, '.'));
}

std::string duration(double seconds) {
  const auto s = static_cast<std::int64_t>(seconds + 0.5);
  return s >= 3600 ? fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
                   : fmt::format("{}:{:02}", s / 60, s % 60);
}

}  // namespace

ProgressBar::ProgressBar() : terminal_(isatty(STDERR_FILENO) == 1) {}

std::string ProgressBar::describe(const Progress& progress, double seconds) const {
  const double fraction =
      progress.total > 0 ? std::clamp(static_cast<double>(progress.done) / progress.total, 0.0, 1.0)
                         : 0.0;
  std::string text = fmt::format("{} {:3.0f}% {}/{} {}", progress.phase, fraction * 100,
                                 progress.done, progress.total, progress.unit);
  if (terminal_) text = fmt::format("{} {}", bar(fraction), text);
  const double rate = seconds > 0 ? (progress.done - first_done_) / seconds : 0;
  if (rate > 0) {
    text += fmt::format(", {:.{}f} {}/s, {} left", rate, rate < 10 ? 1 : 0, progress.unit,
                        duration((progress.total - progress.done) / rate));
  }
  return text;
}

void ProgressBar::update(const Progress& progress) {
  const auto now = Clock::now();
  const bool new_phase = phase_ != progress.phase;
  if (new_phase) {
    finish();
    phase_ = progress.phase;
    phase_start_ = now;
    first_done_ = progress.done;
  }
  const double since = std::chrono::duration<double>(now - last_drawn_).count();
  const bool due = since >= (terminal_ ? kRedrawSeconds : kLineSeconds);
  const bool complete = progress.done >= progress.total;
  if (new_phase && complete) return;  // over before it could be shown
  if (!new_phase && !due && !complete) return;
  last_drawn_ = now;
  const auto text = describe(progress, std::chrono::duration<double>(now - phase_start_).count());
  if (terminal_) {
    write_stderr(fmt::format("\r\x1b[K{}", text));  // \x1b[K erases what a longer line left
    line_open_ = true;
  } else {
    write_stderr(text + "\n");
  }
}

void ProgressBar::finish() {
  if (line_open_) {
    write_stderr("\n");
    line_open_ = false;
  }
  phase_.clear();
}

}  // namespace volvelle::cli
