// The two ways of working behind attend(); each is called by all threads of a task.
#pragma once

#include "attention/workspace.hpp"
#include "volvelle/attention/attend.hpp"

namespace volvelle {

void attend_decode(const AttendTask& task, AttendWorkspace::Impl& workspace, int ith,
                   int nth) noexcept;
void attend_tiled(const AttendTask& task, AttendWorkspace::Impl& workspace, int ith,
                  int nth) noexcept;

}  // namespace volvelle
