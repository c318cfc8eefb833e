// Earlier versions of the kernels, kept to show what each step is worth. All take the library's own
// block description.
#pragma once

#include <vector>

#include "kernels/attend_decode.hpp"
#include "volvelle/attention/attend.hpp"

namespace volvelle::bench {

struct DecodeRung {
  const char* name;
  void (*block)(const DecodeBlock&);
  bool f16_only = false;
};

/// d1 one row at a time | d2 four rows per reduction, whole rows of V | d3 the library's kernel: d2
/// + prefetch into L2.
std::vector<DecodeRung> decode_rungs();

/// p1: every token by itself with the decode kernel, i.e. prefill without tiles. One thread's share
/// of the task's KV heads.
void prefill_untiled(const AttendTask& task, int ith, int nth);

}  // namespace volvelle::bench
