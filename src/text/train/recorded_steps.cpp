#include "text/train/recorded_steps.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace mezzo::text {
namespace {

constexpr int64_t kStepsToSee = 1000;  // of a run, by which kinds of steps are chosen

/// Of the largest micro-batch, as all of a step are made: of as many kinds for each there would be a kind of step for
/// every way to put them together.
StepSize size_of(const StepSize& one, const StepSize& other) {
  return {std::max(one.rows, other.rows), std::max(one.longest, other.longest)};
}

/// Of a run's first steps, were it that long: one that is resumed, or extended, sees the same.
std::vector<StepSize> sizes_of(const TokenizedTexts& texts, const RunPlan& plan, int64_t max_length) {
  std::vector<StepSize> sizes;
  for (int64_t step = 0; step < kStepsToSee; ++step) {
    StepSize size{};
    for (const MicroBatch& micro : plan.micro_batches(texts, step)) {
      const int64_t rows = count_rows(texts, micro.indices, plan.batching, max_length);
      for (const int64_t index : micro.indices) {
        size = size_of(size, {rows, texts.longest(index)});
      }
    }
    sizes.push_back(size);
  }
  return sizes;
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

bool can_record_steps(const TrainConfig& config, const c10::Device& device) {
  // Blocks with LoRA's dropout may pad their rows, for which the host must know the lengths.
  return config.lora_dropout == 0 && !device.is_cpu() && GraphedStep::is_available(device);
}

RecordedSteps::RecordedSteps(const TrainConfig& config, const RunSetup& setup, RunPlan plan, Compute compute)
    : setup_(setup),
      compute_(std::move(compute)),
      is_possible_(can_record_steps(config, setup.device)),
      kinds_(is_possible_ ? sizes_of(setup.train, plan, *config.max_length) : std::vector<StepSize>(),
             setup.model->config().max_tokens()),
      step_(
          setup.device,
          [this](const std::vector<at::Tensor>& tensors) { return std::vector{compute_(unpack(tensors))}; },
          options_of(config)) {
  if (is_possible_) {
    step_offset_ = at::zeros({}, at::TensorOptions(at::kLong).device(setup.device));
  }
}

StepSize RecordedSteps::kind_of(const StepBatches& batches) const {
  StepSize size{};
  for (const StepBatches::Micro& micro : batches.micro) {
    size = size_of(size, {micro.rows.input_ids.size(0), micro.rows.seqlens.max().item<int64_t>()});
  }
  return kinds_.round_up(size);
}

bool RecordedSteps::take(const StepBatches& batches) const {
  const auto dtype = autocast_dtype(setup_.precision).value_or(at::kFloat);
  // A step of words has as many targets as no other, one of windows as many sequences: a graph each would be too many.
  return is_possible_ && setup_.model->head().rows == RowsPer::kText && setup_.train.window_lengths.empty() &&
         setup_.model->encoder().takes_unknown_lengths(setup_.device, dtype, kind_of(batches).longest);
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
  const auto [count, longest] = kind_of(batches);
  std::vector<at::Tensor> tensors;
  for (const auto& [rows, number, is_stand_in] : batches.micro) {
    tensors.push_back(with_filler(rows.input_ids, count, setup_.model->config().pad_token_id));
    tensors.push_back(with_filler(rows.positions, count, 0));
    tensors.push_back(with_filler(rows.token_types, count, 0));
    tensors.push_back(rows.targets);
    tensors.push_back(sequence_table(rows));
    kind_.micro.push_back({{}, number - first, is_stand_in});
    kind_.micro.back().rows.max_seqlen = longest;
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
