#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace mezzo {

/// PyTorch's cache of cast weights is one map for all threads, keyed by the weight alone. Regions of
/// two dtypes would get casts from each other. So regions of one dtype at a time use it, for each
/// device type; a region of another dtype runs without. The cache is emptied when the first of them
/// begins and when the last one ends. Thread-safe.
class PyTorchCastCache {
 public:
  /// Whether a region of `dtype` may use the cache: no region of another dtype does. If true, call
  /// `end_use` when the region ends. Call both while the thread's state is that of the enclosing region.
  static bool begin_use(c10::DeviceType device_type, c10::ScalarType dtype);

  static void end_use(c10::DeviceType device_type);
};

}  // namespace mezzo
