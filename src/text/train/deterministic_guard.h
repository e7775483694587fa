#pragma once

#include <c10/core/Device.h>

namespace mezzo::text {

/// While it lives, LibTorch's operations on a CUDA device take kernels that give the same bits in
/// every run, as mezzo's own do, so that a resumed run goes on to the bit: flash attention's
/// backward, and cuBLAS, which wants the environment variable CUBLAS_WORKSPACE_CONFIG for it and
/// gets ":4096:8" unless it is set. An operation that has no such kernel warns. Does nothing for
/// another device. LibTorch's settings are those of the process.
/// @see torch.use_deterministic_algorithms (Python)
class DeterministicGuard {
 public:
  explicit DeterministicGuard(const c10::Device& device);
  ~DeterministicGuard();
  DeterministicGuard(const DeterministicGuard&) = delete;
  DeterministicGuard& operator=(const DeterministicGuard&) = delete;

 private:
  const bool is_active_, was_on_, only_warned_, filled_;
};

}  // namespace mezzo::text
