#pragma once

namespace mezzo::encoder {

/// As kernels of every kind know it, too.
enum class Activation : int { kGelu, kGeluTanh, kRelu };

}  // namespace mezzo::encoder
