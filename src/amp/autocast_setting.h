#pragma once

#include <c10/core/ScalarType.h>

namespace mezzo::detail {

/// What autocast is set to for a device type: float32 too, which Python can set.
struct AutocastSetting {
  c10::ScalarType dtype;
  bool enabled;
};

}  // namespace mezzo::detail
