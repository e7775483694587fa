#include "mezzo/amp/autocast_state.h"

#include <ATen/autocast_mode.h>

#include <algorithm>

#include "amp/policy_region.h"
#include "amp/pytorch_cast_cache.h"
#include "kernels/dtypes.h"

namespace mezzo {

AutocastState AutocastState::current() {
  AutocastState state;
  for (const auto type : at::autocast::_AUTOCAST_SUPPORTED_DEVICES) {
    state.devices_.push_back({type, at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type)});
  }
  for (const auto type : PolicyRegion::open_device_types()) {
    const PolicyRegion* region = PolicyRegion::current(type);
    state.policies_.push_back({type, region->policy, region->log});
  }
  state.cache_enabled_ = at::autocast::is_autocast_cache_enabled();
  at::autocast::increment_nesting();
  state.in_region_ = at::autocast::decrement_nesting() > 0;
  state.module_path_ = ModuleScope::current_path();
  return state;
}

AutocastState AutocastState::without_log() const {
  AutocastState state = *this;
  for (Policy& policy : state.policies_) {
    policy.log = nullptr;
  }
  return state;
}

void AutocastState::set() const {
  for (const Device& device : devices_) {
    at::autocast::set_autocast_enabled(device.type, device.enabled);
    at::autocast::set_autocast_dtype(device.type, device.dtype);
  }
  at::autocast::set_autocast_cache_enabled(cache_enabled_);
}

AutocastStateGuard::AutocastStateGuard(AutocastState state, AutocastState previous)
    : state_(std::move(state)), previous_(std::move(previous)), scope_(state_.module_path_, ModuleScope::WholePath()) {
  if (state_.in_region_) {
    at::autocast::increment_nesting();
  }
}

// From here on there is a guard: should something throw, its destructor puts back what had changed.
AutocastStateGuard::AutocastStateGuard(AutocastState state)
    : AutocastStateGuard(std::move(state), AutocastState::current()) {
  const bool keeps_casts = use_cast_cache();
  state_.set();
  at::autocast::set_autocast_cache_enabled(keeps_casts);
  // Where only this thread has a policy or a log, there is to be none.
  for (const auto& mine : previous_.policies_) {
    const auto same = [&](const auto& policy) { return policy.type == mine.type; };
    if (std::none_of(state_.policies_.begin(), state_.policies_.end(), same)) {
      policies_.push_back(std::make_unique<PolicyRegionGuard>(mine.type, PolicyRegion()));
    }
  }
  for (const auto& policy : state_.policies_) {
    policies_.push_back(std::make_unique<PolicyRegionGuard>(policy.type, PolicyRegion{policy.table, policy.log}));
  }
}

/// Whether PyTorch keeps casts while this lives: for all device types or for none, as its switch is.
bool AutocastStateGuard::use_cast_cache() {
  for (const auto& device : state_.devices_) {
    const bool has_policy = std::ranges::any_of(state_.policies_, [&](const AutocastState::Policy& policy) {
      return policy.type == device.type && policy.table != nullptr && !policy.table->is_built_in;
    });
    if (!state_.cache_enabled_ || !device.enabled || !is_half(device.dtype) || has_policy) {
      continue;
    }
    if (!PyTorchCastCache::begin_use(device.type, device.dtype)) {
      return false;
    }
    uses_cast_cache_.set(static_cast<size_t>(device.type));
  }
  return state_.cache_enabled_;
}

AutocastStateGuard::~AutocastStateGuard() {
  while (!policies_.empty()) {
    policies_.pop_back();  // in the reverse order of their start
  }
  if (state_.in_region_) {
    at::autocast::decrement_nesting();
  }
  previous_.set();
  for (const auto& device : state_.devices_) {
    if (uses_cast_cache_.test(static_cast<size_t>(device.type))) {
      PyTorchCastCache::end_use(device.type);
    }
  }
}

}  // namespace mezzo
