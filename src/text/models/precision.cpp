#include "mezzo/text/models/precision.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <string>

#include "kernels/cpu/simd/instruction_set.h"
#include "text/io/known_value.h"

namespace mezzo::text {
namespace {

/// Of "cuda:N", no larger than a machine may have; nullopt for all other names.
std::optional<int> cuda_index(std::string_view name) {
  constexpr std::string_view kPrefix = "cuda:";
  const std::string_view digits = name.substr(std::min(kPrefix.size(), name.size()));
  const bool is_index = name.starts_with(kPrefix) && !digits.empty() && digits.size() < 4 &&
                        digits.find_first_not_of("0123456789") == std::string_view::npos;
  return is_index ? std::optional(std::stoi(std::string(digits))) : std::nullopt;
}

/// An accelerator of outside LibTorch, under the name that it has registered there: "npu", "npu:1".
std::optional<c10::Device> registered_device(std::string_view name) {
  const bool is_one =
      c10::is_privateuse1_backend_registered() && name.substr(0, name.find(':')) == c10::get_privateuse1_backend();
  return is_one ? std::optional(c10::Device(std::string(name))) : std::nullopt;
}

bool cpu_has_bf16() { return kernels::cpu::best_instruction_set() == kernels::cpu::InstructionSet::kAvx512Bf16; }

}  // namespace

int64_t cuda_device_count() { return at::hasCUDA() ? at::detail::getCUDAHooks().getNumGPUs() : 0; }

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

void check_precision(std::string_view name, bool may_be_int8) {
  may_be_int8 ? check_known("--precision", name, {"fp32", "bf16", "fp16", "int8", "auto"})
              : check_known("--precision", name, {"fp32", "bf16", "fp16", "auto"});
}

void check_device(std::string_view name) {
  if (!cuda_index(name) && !registered_device(name)) {
    check_known("--device", name, {"cpu", "cuda", "cuda:N", "auto"});
    TORCH_CHECK_VALUE(name != "cuda:N", "--device cuda:N: pass a number for N, as cuda:0");
  }
}

Precision parse_precision(std::string_view name, const c10::Device& device) {
  if (name == "fp32") return Precision::kFloat32;
  if (name == "bf16") return Precision::kBFloat16;
  if (name == "fp16") return Precision::kFloat16;
  check_precision(name);
  if (device.is_cpu()) {
    return cpu_has_bf16() ? Precision::kBFloat16 : Precision::kFloat32;
  }
  if (!device.is_cuda()) {
    return Precision::kFloat32;
  }
  // Tensor cores take bfloat16 from compute capability 8.0 on, which is what this hook asks;
  // earlier ones float16 only.
  const c10::DeviceGuard guard(device);  // whose card is asked
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
  check_device(name);
  if (const auto device = registered_device(name)) {
    return *device;
  }
  const int index = cuda_index(name).value_or(0);
  TORCH_CHECK_VALUE(index < available, "--device ", name, " does not exist: this machine has ", available,
                    available == 1 ? " CUDA device" : " CUDA devices",
                    " that LibTorch can use; pass --device cpu or auto");
  return {at::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

}  // namespace mezzo::text
