#include "distributed/data_parallel/model_manifest.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "distributed/group/compare_ranks.h"

namespace mezzo::distributed {
namespace {

std::string describe(const char* kind, const std::string& name, const at::Tensor& tensor) {
  return fmt::format("{} '{}' {} [{}]{}", kind, name, c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes(), ", "), tensor.requires_grad() ? "" : " without gradient");
}

}  // namespace

std::vector<std::string> describe(const torch::nn::Module& module) {
  std::vector<std::string> lines;
  for (const auto& item : module.named_parameters()) {
    lines.push_back(describe("parameter", item.key(), item.value()));
  }
  for (const auto& item : module.named_buffers()) {
    lines.push_back(describe("buffer", item.key(), item.value()));
  }
  return lines;
}

void check_same_lines(ProcessGroup& group, const std::vector<std::string>& lines) {
  if (const auto difference = compare_ranks(group, lines)) {
    TORCH_CHECK_VALUE(false, "DistributedDataParallel: the models differ: ", difference->here.value_or("no more"),
                      " on rank 0, ", difference->there.value_or("no more"), " on rank ", difference->rank,
                      "; build the same model on every rank");
  }
}

}  // namespace mezzo::distributed
