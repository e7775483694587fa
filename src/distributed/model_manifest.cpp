#include "distributed/model_manifest.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace mezzo::distributed {
namespace {

/// FNV-1a.
std::string hash(const std::string& text) {
  uint64_t value = 0xcbf29ce484222325;
  for (const char c : text) {
    value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return fmt::format("{:016x}", value);
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

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
  const std::string text = fmt::format("{}\n", fmt::join(lines, "\n"));
  const auto hashes = group.all_gather(hash(text));
  const auto other = std::find_if(hashes.begin(), hashes.end(), [&](const auto& value) { return value != hashes[0]; });
  if (other == hashes.end()) {
    return;
  }
  const auto rank = static_cast<int>(other - hashes.begin());
  const auto texts = group.all_gather(group.rank() == 0 || group.rank() == rank ? text : "");
  const auto here = split(texts[0]), there = split(texts[rank]);
  const auto [a, b] = std::mismatch(here.begin(), here.end(), there.begin(), there.end());
  TORCH_CHECK_VALUE(false, "DistributedDataParallel: the models differ: ", a == here.end() ? "no more" : *a,
                    " on rank 0, ", b == there.end() ? "no more" : *b, " on rank ", rank,
                    "; build the same model on every rank");
}

}  // namespace mezzo::distributed
