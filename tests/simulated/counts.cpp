#include "simulated/counts.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <utility>

#include "simulated/arguments.h"
#include "simulated/streams.h"

namespace mezzo::simulated {
namespace {

struct Log {
  std::mutex mutex;
  bool is_kept = false;
  std::vector<LaunchCount> launches;
};

Log& the_log() {
  static auto* const made = new Log;  // threads of streams outlive static storage
  return *made;
}

std::atomic<bool> kernels_compute = true;

/// 2 M N K of each matrix of the operator's product; 0 for another operator.
double flop_of(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  const std::string& name = op.schema().name();
  const bool adds = name == "aten::addmm" || name == "aten::addmm_" || name == "aten::baddbmm";
  if (!adds && name != "aten::mm" && name != "aten::bmm") {
    return 0;
  }
  const auto &a = arguments.at(adds ? 1 : 0).toTensor(), &b = arguments.at(adds ? 2 : 1).toTensor();
  return 2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(-1));
}

/// Overwrites an argument without a look at it.
bool only_writes(const c10::OperatorHandle& op, const c10::Argument& argument) {
  const std::string& name = op.schema().name();
  return argument.is_out() || (is_written(argument) && (name == "aten::zero_" || name == "aten::fill_"));
}

}  // namespace

int64_t bytes_of(const at::Tensor& tensor) {
  int64_t elements = tensor.numel() == 0 ? 0 : 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    elements *= tensor.stride(d) == 0 ? 1 : tensor.size(d);
  }
  return elements * static_cast<int64_t>(tensor.element_size());
}

Traffic traffic_of(const c10::OperatorHandle& op,
                   const torch::jit::Stack& arguments,
                   const torch::jit::Stack& results) {
  Traffic traffic{0, 0, flop_of(op, arguments)};
  const std::string& name = op.schema().name();
  const bool chooses = name == "aten::index_select";
  torch::jit::Stack looked_at = arguments;
  change_tensors(op.schema().arguments(), looked_at, [&](const at::Tensor& tensor, const c10::Argument& argument) {
    if (tensor.device().type() == kType) {
      const bool is_table = chooses && argument.name() == "self";
      const auto bytes = bytes_of(is_table ? results.at(0).toTensor() : tensor);
      traffic.bytes_read += only_writes(op, argument) ? 0 : bytes;
      traffic.bytes_written += is_written(argument) ? bytes : 0;
    }
    return tensor;
  });
  torch::jit::Stack returned = results;
  change_tensors(op.schema().returns(), returned, [&](const at::Tensor& tensor, const c10::Argument& result) {
    traffic.bytes_written += result.alias_info() == nullptr ? bytes_of(tensor) : 0;
    return tensor;
  });
  return traffic;
}

LaunchLog::LaunchLog() {
  const std::lock_guard lock(the_log().mutex);
  TORCH_CHECK(!the_log().is_kept, "LaunchLog: there is one already");
  the_log().is_kept = true;
  the_log().launches.clear();
}

LaunchLog::~LaunchLog() {
  const std::lock_guard lock(the_log().mutex);
  the_log().is_kept = false;
}

std::vector<LaunchCount> LaunchLog::take() {
  const std::lock_guard lock(the_log().mutex);
  return std::exchange(the_log().launches, {});
}

void note_launch(const LaunchCount& launch) {
  const std::lock_guard lock(the_log().mutex);
  if (the_log().is_kept) {
    the_log().launches.push_back(launch);
  }
}

void set_computes(bool computes) { kernels_compute = computes; }
bool computes() { return kernels_compute; }

}  // namespace mezzo::simulated
