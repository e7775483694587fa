#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "mezzo/parallel/data_parallel.h"

namespace mezzo::detail {

BatchDivision::BatchDivision(const std::vector<at::Tensor>& tensors, std::vector<c10::Device> devices, int64_t dim)
    : devices_(std::move(devices)), dim_(dim) {
  std::optional<int64_t> rows;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) {
      continue;
    }
    TORCH_CHECK_VALUE(tensor.dim() > dim, "DataParallel: an argument of shape ", tensor.sizes(),
                      " cannot be divided along dimension ", dim, "; pass it as a number, or make it that of a batch");
    TORCH_CHECK_VALUE(rows.value_or(tensor.size(dim)) == tensor.size(dim),
                      "DataParallel: the arguments are batches of different sizes, ", rows.value_or(0), " and ",
                      tensor.size(dim), " along dimension ", dim);
    rows = tensor.size(dim);
  }
  TORCH_CHECK_VALUE(rows, "DataParallel: no argument is a tensor, so there is nothing to divide between the devices");
  const auto count = static_cast<int64_t>(devices_.size());
  rows_per_part_ = std::max<int64_t>((*rows + count - 1) / count, 1);
  parts_ = static_cast<size_t>(std::max<int64_t>((*rows + rows_per_part_ - 1) / rows_per_part_, 1));
}

at::Tensor BatchDivision::part(const at::Tensor& tensor, size_t index) const {
  if (!tensor.defined()) {
    return tensor;
  }
  const int64_t start = static_cast<int64_t>(index) * rows_per_part_;
  return tensor.narrow(dim_, start, std::min(rows_per_part_, tensor.size(dim_) - start)).to(devices_[index]);
}

void check_same_structure(const std::vector<std::vector<at::Tensor>>& parts) {
  for (size_t i = 1; i < parts.size(); ++i) {
    TORCH_CHECK(parts[i].size() == parts[0].size(), "DataParallel: the output of replica 0 has ", parts[0].size(),
                " tensors, that of replica ", i, " has ", parts[i].size(), "; they cannot be put together");
  }
}

at::Tensor gather(const std::vector<std::vector<at::Tensor>>& parts, size_t index, c10::Device device, int64_t dim) {
  std::vector<at::Tensor> tensors;
  for (const auto& part : parts) {
    if (part[index].defined()) {
      tensors.push_back(part[index].to(device));
    }
  }
  if (tensors.empty()) {
    return {};
  }
  TORCH_CHECK(tensors.size() == parts.size(), "DataParallel: tensor ", index,
              " of the output is undefined in some replicas only; they cannot be put together");
  return tensors[0].dim() == 0 ? at::stack(tensors) : at::cat(tensors, dim);
}

}  // namespace mezzo::detail
