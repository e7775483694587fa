#include "amp/named_overflow.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <array>
#include <exception>
#include <map>
#include <mutex>
#include <string>

#include "amp/policy_thread.h"
#include "mezzo/amp/op_policy.h"

namespace mezzo {
namespace {

constexpr auto kOps = std::to_array<std::string_view>({
    "aten::clamp",
    "aten::clamp_",
    "aten::clamp_max",
    "aten::clamp_max_",
    "aten::clamp_min",
    "aten::clamp_min_",
    "aten::constant_pad_nd",
    "aten::fill_.Scalar",
    "aten::fill_.Tensor",
    "aten::fill_diagonal_",
    "aten::full_like",
    "aten::hardshrink",
    "aten::hardtanh",
    "aten::hardtanh_",
    "aten::index_fill.int_Scalar",
    "aten::index_fill.int_Tensor",
    "aten::index_fill_.int_Scalar",
    "aten::index_fill_.int_Tensor",
    "aten::masked_fill.Scalar",
    "aten::masked_fill.Tensor",
    "aten::masked_fill_.Scalar",
    "aten::masked_fill_.Tensor",
    "aten::new_full",
    "aten::scatter.value",
    "aten::scatter_.value",
    "aten::scatter_.value_reduce",
    "aten::threshold",
    "aten::threshold_",
});

constexpr std::string_view kOverflow = "without overflow";

std::string advice(const c10::OperatorHandle& op) {
  const bool has_preset = op.schema().name() == "aten::masked_fill";
  return c10::str(
      "Pass a number that fits (float16 ends at 65504), such as -65504 or -infinity, or cast the tensor to "
      "float32 before.",
      has_preset ? " The preset masks_fp32 of OpPolicy does so for masked_fill." : "");
}

void call_and_name(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto key = keys.highestPriorityTypeId();
  const c10::impl::ExcludeDispatchKeyGuard made_of_is_not_named(key);
  try {
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key), stack);
  } catch (const std::exception& error) {
    const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
    const std::string message = c10_error != nullptr ? c10_error->what_without_backtrace() : error.what();
    TORCH_CHECK(message.find(kOverflow) == std::string::npos, op.operator_name(), ": ", message, ". ", advice(op));
    throw;
  }
}

void register_kernels(torch::Library& library, c10::DispatchKey key) {
  for (const auto name : kOps) {
    const auto dot = name.find('.');
    const c10::OperatorName op(std::string(name.substr(0, dot)),
                               dot == std::string_view::npos ? "" : std::string(name.substr(dot + 1)));
    const auto handle = c10::Dispatcher::singleton().findSchema(op);
    if (handle && !handle->hasKernelForDispatchKey(key)) {
      library.impl(std::string(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&call_and_name>());
    }
  }
}

}  // namespace

void name_ops_in_overflow_errors(c10::DeviceType device_type) {
  static std::mutex mutex;
  // Registered until the process ends.
  static auto* const libraries = new std::map<c10::DeviceType, torch::Library>();
  const std::lock_guard lock(mutex);
  const auto key = autocast_key(device_type);
  const auto [library, is_new] =
      libraries->try_emplace(device_type, torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
  if (is_new) {
    register_kernels(library->second, key);
  }
}

std::span<const std::string_view> ops_named_in_overflow_errors() { return kOps; }

}  // namespace mezzo
