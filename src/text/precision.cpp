#include "mezzo/text/precision.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/util/Exception.h>

namespace mezzo::text {
namespace {

int64_t cuda_device_count() { return at::hasCUDA() ? at::detail::getCUDAHooks().getNumGPUs() : 0; }

bool cpu_has_bf16() { return __builtin_cpu_supports("avx512bf16") != 0; }

}  // namespace

std::string_view to_string(Precision precision) {
  switch (precision) {
    case Precision::kFloat32: return "fp32";
    case Precision::kBFloat16: return "bf16";
    case Precision::kFloat16: return "fp16";
  }
  TORCH_INTERNAL_ASSERT(false, "unknown precision");
}

std::optional<c10::ScalarType> autocast_dtype(Precision precision) {
  switch (precision) {
    case Precision::kFloat32: return std::nullopt;
    case Precision::kBFloat16: return at::kBFloat16;
    case Precision::kFloat16: return at::kHalf;
  }
  TORCH_INTERNAL_ASSERT(false, "unknown precision");
}

Precision parse_precision(std::string_view name, const c10::Device& device) {
  if (name == "fp32") return Precision::kFloat32;
  if (name == "bf16") return Precision::kBFloat16;
  if (name == "fp16") return Precision::kFloat16;
  TORCH_CHECK_VALUE(name == "auto", "precision '", name, "' is not known: fp32, bf16, fp16, auto");
  if (device.is_cpu()) {
    return cpu_has_bf16() ? Precision::kBFloat16 : Precision::kFloat32;
  }
  // Tensor cores take bfloat16 from compute capability 8.0 on, which is what this hook asks; earlier ones float16 only.
  const bool has_bf16 = at::detail::getCUDAHooks().supportsBFloat16ConvolutionWithCuDNNv8();
  return has_bf16 ? Precision::kBFloat16 : Precision::kFloat16;
}

c10::Device parse_device(std::string_view name) {
  const int64_t available = cuda_device_count();
  if (name == "auto") {
    return available > 0 ? c10::Device(at::kCUDA, 0) : c10::Device(at::kCPU);
  }
  if (name == "cpu") {
    return at::kCPU;
  }
  const bool is_cuda = name == "cuda" || (name.starts_with("cuda:") && name.size() > 5 && name.size() < 9 &&
                                          name.find_first_not_of("0123456789", 5) == std::string_view::npos);
  TORCH_CHECK_VALUE(is_cuda, "device '", name, "' is not known: cpu, cuda, cuda:N, auto");
  const int index = name == "cuda" ? 0 : std::stoi(std::string(name.substr(5)));
  TORCH_CHECK_VALUE(index < available, "device '", name, "' is not there: this machine has ", available,
                    " CUDA devices that LibTorch can use; pass --device cpu or auto");
  return {at::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

}  // namespace mezzo::text
