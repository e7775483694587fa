#pragma once

#include <c10/core/Device.h>

namespace mezzo::text {

/// While it lives, LibTorch's operations on a CUDA device take deterministic kernels, as mezzo's own are. So a resumed
/// run is bit-identical. cuBLAS needs CUBLAS_WORKSPACE_CONFIG for it, which becomes ":4096:8" unless it is set. An
/// operation without such a kernel warns. Does nothing for another device. Changes settings of the whole process.
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
