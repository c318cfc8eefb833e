// What the machine can do, measured in the same run as the kernels.
#pragma once

#include <cstddef>
#include <cstdint>

namespace volvelle::bench {

/// Reads all bytes once (plain vector loads with prefetch); returns a value that keeps the loads
/// alive.
float read_all(const std::byte* data, std::size_t bytes);

/// `steps` rounds of independent multiply-adds in registers; returns their FLOPs through `flops`.
float multiply_add(std::int64_t steps, double* flops);

}  // namespace volvelle::bench
