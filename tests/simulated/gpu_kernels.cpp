#include "simulated/gpu_kernels.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <utility>
#include <vector>

#include "amp/cuda/cross_entropy.h"
#include "cuda/host_block.h"
#include "encoder/cuda/block_ops.h"
#include "kernels/cuda/operators.h"
#include "simulated/launch.h"

namespace mezzo::simulated {
namespace {

namespace gpu = kernels::MEZZO_CUDA;

void take_to_stream(void* stream, gpu::Launched launched) {
  TORCH_CHECK(stream != nullptr, "simulated device: ", launched.kernel, " was launched on no stream");
  Launch launch(launched.kernel, *static_cast<Queue*>(stream));
  Traffic traffic;
  for (const gpu::MemoryUse& use : launched.uses) {
    launch.use(use.data, use.bytes_written > 0);
    traffic.bytes_read += use.bytes_read;
    traffic.bytes_written += use.bytes_written;
  }
  launch.count_as(traffic);
  launch.run(std::move(launched.run));
}

/// Products that are not rounded to their factors' dtype, which LibTorch has for CUDA alone.
at::Tensor& product(const char* name, const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype, at::Tensor& out) {
  TORCH_CHECK(out.scalar_type() == dtype, "simulated device: ", name,
              " is of another dtype than what it is written to");
  const c10::DeviceGuard guard(a.device());
  Launch launch(name);
  const auto left = launch.read(a), right = launch.read(b), to = launch.write(out);
  launch.count_as({bytes_of(a) + bytes_of(b), bytes_of(out),
                   2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(-1))});
  launch.run([=] { to.copy_(at::matmul(left.to(dtype), right.to(dtype))); });
  return out;
}

at::Tensor& mm_out(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype, at::Tensor& out) {
  return product("aten::mm.dtype", a, b, dtype, out);
}

at::Tensor& bmm_out(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype, at::Tensor& out) {
  return product("aten::bmm.dtype", a, b, dtype, out);
}

at::Tensor mm(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype) {
  auto out = at::empty({a.size(0), b.size(1)}, a.options().dtype(dtype));
  return mm_out(a, b, dtype, out);
}

at::Tensor bmm(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype) {
  auto out = at::empty({a.size(0), a.size(1), b.size(2)}, a.options().dtype(dtype));
  return bmm_out(a, b, dtype, out);
}

/// As blocks call it: the result is written over the added tensor.
at::Tensor& addmm_out(const at::Tensor& sum,
                      const at::Tensor& a,
                      const at::Tensor& b,
                      at::ScalarType dtype,
                      const at::Scalar& beta,
                      const at::Scalar& alpha,
                      at::Tensor& out) {
  TORCH_CHECK(out.is_same(sum) && out.scalar_type() == dtype && beta.toDouble() == 1 && alpha.toDouble() == 1,
              "simulated device: addmm.dtype_out is that of sums alone");
  const c10::DeviceGuard guard(a.device());
  Launch launch("aten::addmm.dtype_out");
  const auto left = launch.read(a), right = launch.read(b), to = launch.write(out);
  launch.count_as({bytes_of(a) + bytes_of(b) + bytes_of(out), bytes_of(out),
                   2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(-1))});
  launch.run([=] { to.add_(at::mm(left.to(dtype), right.to(dtype))); });
  return out;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("mm.dtype", &mm);
  m.impl("mm.dtype_out", &mm_out);
  m.impl("addmm.dtype_out", &addmm_out);
  m.impl("bmm.dtype", &bmm);
  m.impl("bmm.dtype_out", &bmm_out);
}

}  // namespace

WithGpuKernels::WithGpuKernels() {
  gpu::set_launch_hook(&take_to_stream);
  encoder::set_block_ops(kType, &encoder::MEZZO_CUDA::kBlockOps);
  kernels::set_device_kernels(kType, &gpu::kDeviceKernels);
  set_cross_entropy_kernels(kType, &mezzo::MEZZO_CUDA::kCrossEntropyKernels);
}

WithGpuKernels::~WithGpuKernels() {
  encoder::set_block_ops(kType, nullptr);
  kernels::set_device_kernels(kType, nullptr);
  set_cross_entropy_kernels(kType, nullptr);
  gpu::set_launch_hook(nullptr);
}

}  // namespace mezzo::simulated
