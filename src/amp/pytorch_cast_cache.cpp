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

/// Whether this thread is in a region that keeps casts, and for which dtype; else Undefined.
c10::ScalarType kept_dtype(c10::DeviceType device_type) {
  const bool keeps = at::autocast::is_autocast_enabled(device_type) && at::autocast::is_autocast_cache_enabled();
  return keeps ? at::autocast::get_autocast_dtype(device_type) : c10::ScalarType::Undefined;
}

}  // namespace

bool PyTorchCastCache::begin_use(c10::DeviceType device_type, c10::ScalarType dtype) {
  const auto enclosing = kept_dtype(device_type);
  if (enclosing != c10::ScalarType::Undefined && enclosing != dtype) {
    return false;
  }
  auto& uses = cache_uses();
  const std::lock_guard lock(uses.mutex);
  CacheUse& use = uses.of_device_types[static_cast<size_t>(device_type)];
  if (use.regions > 0 && use.dtype != dtype) {
    return false;
  }
  if (use.regions++ == 0) {
    use.dtype = dtype;
    if (enclosing != dtype) {
      at::autocast::clear_cache();  // of casts of Python's regions
    }
  }
  return true;
}

void PyTorchCastCache::end_use(c10::DeviceType device_type) {
  auto& uses = cache_uses();
  const std::lock_guard lock(uses.mutex);
  CacheUse& use = uses.of_device_types[static_cast<size_t>(device_type)];
  if (--use.regions == 0 && kept_dtype(device_type) != use.dtype) {
    at::autocast::clear_cache();
  }
}

}  // namespace mezzo
