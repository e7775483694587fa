#pragma once

namespace mezzo::simulated {

/// While it lives, the simulated devices have mezzo's kernels for GPUs. BlockOps and the operators'
/// kernels are CUDA's. Each launch is a kernel of its stream. The CPU executes its blocks of
/// threads (cuda/host_block.h). The launch refuses a kernel without memory, or with memory of
/// another device or time. A kernel that touches undeclared memory, or writes to memory declared as
/// read, ends the process.
class WithGpuKernels {
 public:
  WithGpuKernels();
  ~WithGpuKernels();
  WithGpuKernels(const WithGpuKernels&) = delete;
  WithGpuKernels& operator=(const WithGpuKernels&) = delete;
};

}  // namespace mezzo::simulated
