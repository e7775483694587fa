#pragma once

#include <c10/core/GradMode.h>

#include <optional>

#include "amp/random_state_guard.h"
#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/cast_log.h"

namespace mezzo {

/// What CastLog::dry_run does around its function, while it lives.
class DryRun {
 public:
  DryRun(CastLog& log, c10::Device device, c10::ScalarType dtype, const std::optional<OpPolicy>& policy)
      : random_state_(device.type()), autocast_(device, dtype, AutocastOptions().policy(policy).log(&log)) {}

 private:
  const c10::NoGradGuard no_grad_;
  const RandomStateGuard random_state_;
  const AutocastGuard autocast_;
};

}  // namespace mezzo
