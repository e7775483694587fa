#include "amp/pytorch_cast_cache.h"

#include <ATen/autocast_mode.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace mezzo {
namespace {

struct CacheUse {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  int64_t regions = 0;
};

struct CacheUses {
  std::mutex mutex;
  std::array<CacheUse, c10::COMPILE_TIME_MAX_DEVICE_TYPES> of_device_types;
};

CacheUses& cache_uses() {
  static CacheUses uses;
  return uses;
}

}  // namespace

bool PyTorchCastCache::begin_use(c10::DeviceType device_type, c10::ScalarType dtype) {
  const bool python_uses_it = at::autocast::is_autocast_enabled(device_type) &&
                              at::autocast::is_autocast_cache_enabled() &&
                              at::autocast::get_autocast_dtype(device_type) != dtype;
  if (python_uses_it) {  // or a region of mezzo's, which is counted below too
    return false;
  }
  auto& uses = cache_uses();
  const std::lock_guard lock(uses.mutex);
  CacheUse& use = uses.of_device_types[static_cast<size_t>(device_type)];
  if (use.dtype != dtype) {
    if (use.regions > 0) {
      return false;
    }
    at::autocast::clear_cache();
    use.dtype = dtype;
  }
  ++use.regions;
  return true;
}

void PyTorchCastCache::end_use(c10::DeviceType device_type) {
  auto& uses = cache_uses();
  const std::lock_guard lock(uses.mutex);
  --uses.of_device_types[static_cast<size_t>(device_type)].regions;
}

}  // namespace mezzo
