#include "amp/policy_region.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "amp/op_watchers.h"
#include "amp/policy_thread.h"
#include "mezzo/amp/autocast_guard.h"

namespace mezzo {

const PolicyRegion* PolicyRegion::current(c10::DeviceType device_type) {
  const auto* thread = PolicyThread::current();
  return thread == nullptr ? nullptr : thread->innermost[static_cast<size_t>(device_type)];
}

bool PolicyRegion::has_policy(c10::DeviceType device_type) {
  const auto* region = current(device_type);
  return region != nullptr && region->policy != nullptr && !region->policy->is_built_in;
}

CastLog* PolicyRegion::current_log(c10::DeviceType device_type) {
  const auto* region = current(device_type);
  return region == nullptr ? nullptr : region->log;
}

std::vector<c10::DeviceType> PolicyRegion::open_device_types() {
  const auto* thread = PolicyThread::current();
  return thread == nullptr ? std::vector<c10::DeviceType>()
                           : std::vector(thread->device_types.begin(), thread->device_types.end());
}

PolicyRegionGuard::PolicyRegionGuard(c10::DeviceType device_type, PolicyRegion region)
    : thread_(PolicyThread::ready()),
      device_type_(device_type),
      region_(std::move(region)),
      outer_(thread_.innermost[static_cast<size_t>(device_type)]),
      was_included_(c10::impl::tls_is_dispatch_key_included(kPolicyKey)) {
  const auto key = autocast_key(device_type);
  if (region_.log != nullptr && region_.policy == nullptr) {
    region_.policy = built_in_table(device_type);
  }
  if (outer_ == nullptr) {
    thread_.device_types.push_back(device_type);  // the last that may throw
    thread_.autocast = thread_.autocast.add(key);
  }
  thread_.innermost[static_cast<size_t>(device_type)] = &region_;
  c10::impl::tls_set_dispatch_key_included(kPolicyKey, true);
  if (region_.log != nullptr) {
    ++op_watchers_begun();
  }
}

PolicyRegionGuard::~PolicyRegionGuard() {
  c10::impl::tls_set_dispatch_key_included(kPolicyKey, was_included_);
  thread_.innermost[static_cast<size_t>(device_type_)] = outer_;
  if (outer_ == nullptr) {
    thread_.device_types.pop_back();  // opened last
    thread_.autocast = thread_.autocast.remove(autocast_key(device_type_));
    if (thread_.device_types.empty()) {
      thread_.cache.clear();
    }
  }
}

size_t autocast_cache_size() {
  const auto* thread = PolicyThread::current();
  return thread == nullptr ? 0 : thread->cache.size();
}

}  // namespace mezzo
