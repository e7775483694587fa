#pragma once

namespace mezzo::kernels {

/// What an array holds; kernels compute in float32 whatever it is.
enum class Element : int { kFloat, kBFloat16, kHalf };

}  // namespace mezzo::kernels
