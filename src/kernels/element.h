#pragma once

namespace mezzo::kernels {

/// The element type of an array; kernels compute in float32 for each type.
enum class Element : int { kFloat, kBFloat16, kHalf };

}  // namespace mezzo::kernels
