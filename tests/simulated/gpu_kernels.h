#pragma once

namespace mezzo::simulated {

/// While it lives, the simulated devices have mezzo's kernels for GPUs: BlockOps and the operators'
/// kernels are CUDA's, each launch is a kernel of the stream it was sent to, and its blocks of
/// threads are executed on the CPU (cuda/host_block.h). A kernel that is given no memory, or that
/// of another device or time, is refused when it is launched; one that touches what it does not say
/// that it uses, or writes to what it only reads, ends the process.
class WithGpuKernels {
 public:
  WithGpuKernels();
  ~WithGpuKernels();
  WithGpuKernels(const WithGpuKernels&) = delete;
  WithGpuKernels& operator=(const WithGpuKernels&) = delete;
};

}  // namespace mezzo::simulated
