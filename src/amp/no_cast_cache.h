#pragma once

#include <ATen/autocast_mode.h>

namespace mezzo {

/// While it lives, autocast casts a weight at each use on this thread.
class NoCastCacheGuard {
 public:
  NoCastCacheGuard() { at::autocast::set_autocast_cache_enabled(false); }
  ~NoCastCacheGuard() { at::autocast::set_autocast_cache_enabled(previous_); }
  NoCastCacheGuard(const NoCastCacheGuard&) = delete;
  NoCastCacheGuard& operator=(const NoCastCacheGuard&) = delete;

 private:
  const bool previous_ = at::autocast::is_autocast_cache_enabled();
};

}  // namespace mezzo
