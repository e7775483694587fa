#include "encoder/sequence_layout.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>

#include "encoder/registered_class.h"
#include "memory/device_copy.h"

namespace mezzo::encoder {
namespace {

/// A sequence joins a group if it fills at least this share of the group's longest.
constexpr double kLeastFill = 0.75;

/// The sequences by length, longest first, cut into groups of similar length.
std::vector<std::vector<int64_t>> group_by_length(const std::vector<Sequence>& sequences) {
  std::vector<int64_t> order(sequences.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return sequences[a].num_tokens > sequences[b].num_tokens; });
  std::vector<std::vector<int64_t>> groups;
  for (const int64_t sequence : order) {
    const double longest = groups.empty() ? 0 : static_cast<double>(sequences[groups.back().front()].num_tokens);
    if (groups.empty() || static_cast<double>(sequences[sequence].num_tokens) < kLeastFill * longest) {
      groups.emplace_back();
    }
    groups.back().push_back(sequence);
  }
  return groups;
}

}  // namespace

SequenceLayout::SequenceLayout(const at::Tensor& cu_seqlens,
                               const at::Tensor& seqlens,
                               int64_t num_rows,
                               const at::Device& device)
    : num_rows_(num_rows) {
  TORCH_CHECK_VALUE(cu_seqlens.numel() == seqlens.numel() + 1, "SequenceLayout: ", cu_seqlens.numel(),
                    " rows in cu_seqlens for ", seqlens.numel(),
                    " sequences; expected one more, the end of the last sequence");
  TORCH_CHECK_VALUE(cu_seqlens.is_cpu() && seqlens.is_cpu(),
                    "SequenceLayout: cu_seqlens and seqlens must be on the CPU");
  const auto first = cu_seqlens.accessor<int32_t, 1>(), counts = seqlens.accessor<int32_t, 1>();
  const int64_t batch_size = counts.size(0);
  int64_t free_from = 0;  // the rows before are others'
  for (int64_t b = 0; b < batch_size; ++b) {
    const int64_t begin = first[b], count = counts[b], end = first[b + 1];
    TORCH_CHECK_VALUE(
        count > 0 && begin >= free_from && begin + count <= end && end <= num_rows, "SequenceLayout: sequence ", b,
        " has ", count, " tokens in rows ", begin, " to ", end - 1, " of ", num_rows,
        ", but earlier sequences own the rows up to ", free_from - 1,
        ". Each sequence needs at least one token, a row for each token, and rows after the earlier sequences");
    sequences_.push_back({begin, count});
    longest_ = std::max(longest_, count);
    free_from = end;
  }
  const auto table = at::empty({batch_size, 2}, at::TensorOptions(at::kInt).pinned_memory(device.is_cuda()));
  table.select(1, 0).copy_(cu_seqlens.narrow(0, 0, batch_size));
  table.select(1, 1).copy_(seqlens);
  table_ = copy_to(table, device);
  first_rows_ = table_.select(1, 0).to(at::kLong);
}

SequenceLayout::SequenceLayout(const at::Tensor& table, int64_t num_rows, int64_t longest)
    : num_rows_(num_rows),
      longest_(longest),
      is_known_(false),
      table_(table),
      first_rows_(table.select(1, 0).to(at::kLong)) {}

const std::vector<Sequence>& SequenceLayout::sequences() const {
  TORCH_CHECK(is_known_, "SequenceLayout: only the device knows the rows of the sequences");
  return sequences_;
}

void SequenceLayout::check(at::ArrayRef<at::Tensor> rows, int64_t num_heads) const {
  for (const at::Tensor& tensor : rows) {
    TORCH_CHECK_VALUE(tensor.dim() == 2 && tensor.size(0) == num_rows_ && tensor.sizes() == rows.front().sizes() &&
                          num_heads > 0 && tensor.size(1) > 0 && tensor.size(1) % num_heads == 0,
                      "SequenceLayout: attention needs a matrix of ", num_rows_,
                      " rows, whose number of columns is a multiple of the ", num_heads, " heads; got ",
                      tensor.sizes());
  }
}

bool SequenceLayout::is_gapless() const {
  int64_t next = 0;
  for (const Sequence& sequence : sequences()) {
    if (sequence.first_row != next) {
      return false;
    }
    next += sequence.num_tokens;
  }
  return true;
}

const SequenceLayout::Padding& SequenceLayout::padding() const {
  if (padding_) {
    return *padding_;
  }
  padding_.emplace();
  const auto device = first_rows_.device();
  std::vector<int64_t> unpad(num_rows_, 0);
  int64_t padded_rows = 0;
  for (const auto& members : group_by_length(sequences())) {
    const auto size = static_cast<int64_t>(members.size()), longest = sequences_[members.front()].num_tokens;
    std::vector<int64_t> pad(size * longest, 0);
    auto key_mask = at::zeros({size, 1, 1, longest}, at::kBool);
    for (int64_t g = 0; g < size; ++g) {
      const auto [begin, count] = sequences_[members[g]];
      for (int64_t i = 0; i < count; ++i) {
        pad[g * longest + i] = begin + i;
        unpad[begin + i] = padded_rows + g * longest + i;
      }
      key_mask.select(0, g).narrow(2, 0, count).fill_(true);
    }
    padding_->groups.push_back({size, longest, copy_to(at::tensor(pad, at::kLong), device), copy_to(key_mask, device)});
    padded_rows += size * longest;
  }
  padding_->unpad_index = copy_to(at::tensor(unpad, at::kLong), device);
  return *padding_;
}

const std::string& sequence_layout_schema() {
  static const std::string name = registered_class("SequenceLayout", [](const std::string& class_name) {
    torch::class_<SequenceLayout>("mezzo", class_name)
        .def(torch::init<const at::Tensor&, const at::Tensor&, int64_t, const at::Device&>());
  });
  return name;
}

}  // namespace mezzo::encoder
