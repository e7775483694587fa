#include "text/train/recorded_steps.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <utility>

namespace mezzo::text {
namespace {

/// One text longer than the rest should not make a kind of its own.
constexpr int64_t kShortest = 32;  // tokens, which attention takes in one launch

/// To a multiple of 32, and of an eighth of the next smaller power of two: a dozen kinds from 512
/// rows to 2,048, and 6 % of filler on average.
int64_t rounded_rows(int64_t rows) {
  const auto multiple = std::max<int64_t>(32, static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(rows)) / 8));
  return (rows + multiple - 1) / multiple * multiple;
}

int64_t rounded_length(int64_t tokens) {
  return std::max(kShortest, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(tokens))));
}

at::Tensor with_filler(const at::Tensor& rows, int64_t count, int64_t filler) {
  return rows.defined() ? at::constant_pad_nd(rows, {0, count - rows.size(0)}, filler) : rows;
}

/// [B, 2]: first row and tokens of each text.
at::Tensor sequence_table(const PackedBatch& rows) {
  return at::stack({rows.cu_seqlens.narrow(0, 0, rows.size()), rows.seqlens}, 1);
}

/// Tensors of a micro-batch, in their order.
enum Tensor { kIds, kPositions, kTypes, kTargets, kTable, kTensors };

GraphedStepOptions options_of(const TrainConfig& config) {
  // The first call makes the optimizer's state; there is none to warm up for further kinds.
  return GraphedStepOptions().warmup_steps(1).max_graphs(64).enabled(!config.eager);
}

}  // namespace

bool can_record_steps(const c10::Device& device, int ranks) {
  return !device.is_cpu() && ranks == 1 && GraphedStep::is_available(device);
}

RecordedSteps::RecordedSteps(const TrainConfig& config, const RunSetup& setup, const Ranks& ranks, Compute compute)
    : setup_(setup),
      compute_(std::move(compute)),
      is_possible_(can_record_steps(setup.device, ranks.size())),
      step_(
          setup.device,
          [this](const std::vector<at::Tensor>& tensors) { return std::vector{compute_(unpack(tensors))}; },
          options_of(config)) {
  if (is_possible_) {
    step_offset_ = at::zeros({}, at::TensorOptions(at::kLong).device(setup.device));
  }
}

int64_t RecordedSteps::longest_of(const PackedBatch& rows) const {
  return std::min(rounded_length(rows.seqlens.max().item<int64_t>()), setup_.model->config().max_tokens());
}

bool RecordedSteps::take(const StepBatches& batches) const {
  const auto dtype = autocast_dtype(setup_.precision).value_or(at::kFloat);
  // A step of words has as many targets as no other, one of windows as many sequences: a graph each would be too many.
  return is_possible_ && setup_.model->head().rows == RowsPer::kText && setup_.train.window_lengths.empty() &&
         std::ranges::all_of(batches.micro, [&](const StepBatches::Micro& micro) {
           return setup_.model->encoder().takes_unknown_lengths(setup_.device, dtype, longest_of(micro.rows));
         });
}

at::Tensor RecordedSteps::run(const StepBatches& batches, bool eagerly) {
  const auto tensors = pack(batches);
  std::vector<int64_t> numbers{batches.num_targets};
  for (const auto& micro : kind_.micro) {
    numbers.insert(numbers.end(), {micro.rows.max_seqlen, int64_t{micro.number}, int64_t{micro.is_stand_in}});
  }
  return eagerly ? compute_(unpack(tensors)) : step_(tensors, numbers).front();
}

/// Leaves in kind_ what is not in the tensors.
std::vector<at::Tensor> RecordedSteps::pack(const StepBatches& batches) {
  const uint32_t first = batches.micro.front().number;
  step_offset_.fill_(int64_t{first});
  kind_ = {{}, batches.num_targets, step_offset_};
  std::vector<at::Tensor> tensors;
  for (const auto& [rows, number, is_stand_in] : batches.micro) {
    const int64_t count = rounded_rows(rows.input_ids.size(0));
    tensors.push_back(with_filler(rows.input_ids, count, setup_.model->config().pad_token_id));
    tensors.push_back(with_filler(rows.positions, count, 0));
    tensors.push_back(with_filler(rows.token_types, count, 0));
    tensors.push_back(rows.targets);
    tensors.push_back(sequence_table(rows));
    kind_.micro.push_back({{}, number - first, is_stand_in});
    kind_.micro.back().rows.max_seqlen = longest_of(rows);
  }
  return tensors;
}

StepBatches RecordedSteps::unpack(const std::vector<at::Tensor>& tensors) const {
  StepBatches batches = kind_;
  for (size_t i = 0; i < batches.micro.size(); ++i) {
    const at::Tensor* own = &tensors[i * kTensors];
    PackedBatch& rows = batches.micro[i].rows;
    rows = {.input_ids = own[kIds],
            .positions = own[kPositions],
            .token_types = own[kTypes],
            .cu_seqlens = {},
            .seqlens = {},
            .targets = own[kTargets],
            .num_tokens = 0,
            .sequence_table = own[kTable],
            .max_seqlen = rows.max_seqlen};
  }
  return batches;
}

}  // namespace mezzo::text
