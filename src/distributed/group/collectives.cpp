#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "distributed/group/backends.h"
#include "graph/step_recording.h"
#include "mezzo/distributed/group/process_group.h"

namespace mezzo::distributed {

/// Of a call that this rank alone can know to be wrong, and on request of one that other ranks make otherwise.
void ProcessGroup::check_tensor(const char* collective, const at::Tensor& tensor, bool same_shape) {
  TORCH_CHECK_VALUE(tensor.defined(), collective, ": the tensor of rank ", name_of(rank()), " is undefined");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, collective, ": the tensor of rank ", name_of(rank()), " is ",
                    tensor.layout(), "; pass a dense tensor");
  const auto backends = group_->getDeviceTypes();
  const bool has_backend =
      std::ranges::any_of(backends, [&](const c10::Device& device) { return device.type() == tensor.device().type(); });
  const bool is_of_the_group =
      tensor.is_cpu() || !options_.device().has_index() || tensor.device() == options_.device();
  TORCH_CHECK_VALUE(has_backend && is_of_the_group, collective, ": the tensor of rank ", name_of(rank()), " is on ",
                    tensor.device(), ", and the group is for ", options_.device(), "; set ProcessGroupOptions::device");
  if (options_.check_collectives()) {
    const auto sizes = tensor.sizes().slice(same_shape ? 0 : 1);
    const auto call =
        fmt::format("{} of {} [{}]", collective, c10::toString(tensor.scalar_type()), fmt::join(sizes, ", "));
    const auto check = [this, call] { guard([&] { check_same({{"the tensor of a collective", call}}); }); };
    auto* const recording = StepRecording::current();
    if (recording != nullptr && !can_be_captured(*group_, tensor.device().type())) {
      recording->call_before_next(check);  // in the order of a rank that does not replay the step
    } else {
      do_each_time(StepRecording::current_notes(), check);
    }
  }
}

void ProcessGroup::check_divides(const char* collective, int64_t rows, std::vector<int64_t>& parts) const {
  if (parts.empty()) {
    TORCH_CHECK_VALUE(rows % size() == 0, collective, ": rank ", name_of(rank()), " has ", rows,
                      " rows, which cannot be divided into ", size(), " equal parts");
    parts.assign(static_cast<size_t>(size()), rows / size());
  }
  const bool fits = std::ssize(parts) == size() && std::ranges::min(parts) >= 0 &&
                    std::accumulate(parts.begin(), parts.end(), int64_t(0)) == rows;
  TORCH_CHECK_VALUE(fits, collective, ": the split sizes of rank ", name_of(rank()), " are [",
                    fmt::to_string(fmt::join(parts, ", ")), "], expected ", size(), " numbers whose sum is ", rows);
}

/// `start` begins a collective, which takes memory that is contiguous.
template <class Start>
void ProcessGroup::in_place(const at::Tensor& tensor, const Start& start) {
  const std::vector<at::Tensor> tensors{tensor.detach().contiguous()};
  run_collective(*this, tensor.device().type(), [start, sent = tensors]() mutable { start(sent)->wait(); });
  if (!tensor.is_contiguous()) {
    tensor.detach().copy_(tensors[0]);
  }
}

void ProcessGroup::all_reduce(at::Tensor& tensor, c10d::ReduceOp op) {
  guard([&] {
    check_tensor("all_reduce", tensor);
    in_place(tensor, [this, op](std::vector<at::Tensor>& tensors) {
      c10d::AllreduceOptions options;
      options.reduceOp = op;
      return group_->allreduce(tensors, options);
    });
  });
}

void ProcessGroup::broadcast(at::Tensor& tensor, int root) {
  guard([&] {
    check_tensor("broadcast", tensor);
    TORCH_CHECK_VALUE(root >= 0 && root < size(), "broadcast: there is no rank ", root, " in a group of ", size());
    in_place(tensor, [this, root](std::vector<at::Tensor>& tensors) {
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return group_->broadcast(tensors, options);
    });
  });
}

std::vector<at::Tensor> ProcessGroup::all_gather(const at::Tensor& tensor) {
  std::vector<at::Tensor> gathered;
  guard([&] {
    check_tensor("all_gather", tensor);
    gathered = gather(tensor);
  });
  return gathered;
}

std::vector<at::Tensor> ProcessGroup::gather(const at::Tensor& tensor) {
  const std::vector<at::Tensor> inputs{tensor.detach().contiguous()};
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (int other = 0; other < size(); ++other) {
    outputs[0].push_back(at::empty_like(inputs[0]));
  }
  run_collective(*this, tensor.device().type(),
                 [this, to = outputs, from = inputs]() mutable { group_->allgather(to, from)->wait(); });
  return outputs[0];
}

at::Tensor ProcessGroup::reduce_scatter(const at::Tensor& tensor, c10d::ReduceOp op) {
  at::Tensor output;
  guard([&] {
    check_tensor("reduce_scatter", tensor);
    TORCH_CHECK_VALUE(tensor.dim() > 0, "reduce_scatter: the tensor of rank ", name_of(rank()), " has no dimension");
    std::vector<int64_t> parts;
    check_divides("reduce_scatter", tensor.size(0), parts);
    auto input = tensor.detach().contiguous();
    output = at::empty_like(input.narrow(0, 0, parts[0]));
    run_collective(*this, input.device().type(), [this, to = output, input, op]() mutable {
      c10d::ReduceScatterOptions options;
      options.reduceOp = op;
      group_->reduce_scatter_single(to, input, options)->wait();
    });
  });
  return output;
}

at::Tensor ProcessGroup::all_to_all(const at::Tensor& tensor,
                                    std::vector<int64_t> output_split_sizes,
                                    std::vector<int64_t> input_split_sizes) {
  at::Tensor output;
  guard([&] {
    check_tensor("all_to_all", tensor, /*same_shape=*/false);
    TORCH_CHECK_VALUE(tensor.dim() > 0, "all_to_all: the tensor of rank ", name_of(rank()), " has no dimension");
    auto input = tensor.detach().contiguous();
    check_divides("all_to_all", input.size(0), input_split_sizes);
    auto shape = input.sizes().vec();
    if (!output_split_sizes.empty()) {
      shape[0] = std::accumulate(output_split_sizes.begin(), output_split_sizes.end(), int64_t(0));
    }
    check_divides("all_to_all", shape[0], output_split_sizes);
    output = at::empty(shape, input.options());
    run_collective(*this, input.device().type(),
                   [this, to = output, input, output_split_sizes, input_split_sizes]() mutable {
                     group_->all_to_all_single(to, input, output_split_sizes, input_split_sizes)->wait();
                   });
  });
  return output;
}

std::function<void(at::Tensor& found_inf)> all_reduce_found_inf(ProcessGroup& group) {
  return [&group](at::Tensor& found_inf) { group.all_reduce(found_inf, c10d::ReduceOp::MAX); };
}

std::vector<std::string> ProcessGroup::all_gather(const std::string& text) {
  auto length = at::empty({1}, at::kLong);
  length.mutable_data_ptr<int64_t>()[0] = static_cast<int64_t>(text.size());
  const auto lengths = gather(length);
  int64_t longest = 1;
  for (const auto& other : lengths) {
    longest = std::max(longest, other.const_data_ptr<int64_t>()[0]);
  }
  auto bytes = at::zeros({longest}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.mutable_data_ptr<uint8_t>());
  std::vector<std::string> texts;
  for (const auto& other : gather(bytes)) {
    const auto* first = other.const_data_ptr<uint8_t>();
    texts.emplace_back(first, first + lengths[texts.size()].const_data_ptr<int64_t>()[0]);
  }
  return texts;
}

void ProcessGroup::barrier() { any(false); }

bool ProcessGroup::any(bool here) {
  auto flag = at::empty({1}, at::kInt);
  flag.mutable_data_ptr<int32_t>()[0] = here ? 1 : 0;
  in_place(flag, [this](std::vector<at::Tensor>& flags) {
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;
    return group_->allreduce(flags, options);
  });
  return flag.const_data_ptr<int32_t>()[0] != 0;
}

}  // namespace mezzo::distributed
