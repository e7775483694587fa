#include "text/train/deterministic_guard.h"

#include <ATen/Context.h>

#include <cstdlib>

namespace mezzo::text {

DeterministicGuard::DeterministicGuard(const c10::Device& device)
    : is_active_(device.is_cuda()),
      was_on_(at::globalContext().deterministicAlgorithms()),
      only_warned_(at::globalContext().deterministicAlgorithmsWarnOnly()),
      filled_(at::globalContext().deterministicFillUninitializedMemory()) {
  if (is_active_) {
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/!was_on_ || only_warned_);
    at::globalContext().setDeterministicFillUninitializedMemory(false);  // memory that is not written is not read
  }
}

DeterministicGuard::~DeterministicGuard() {
  if (is_active_) {
    at::globalContext().setDeterministicAlgorithms(was_on_, only_warned_);
    at::globalContext().setDeterministicFillUninitializedMemory(filled_);
  }
}

}  // namespace mezzo::text
