#include "text/train/recorded_steps.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "text/data/graph_batch.h"

namespace mezzo::text {
namespace {

constexpr int64_t kStepsToSee = 1000;  // of a run, by which kinds of steps are chosen

/// All micro-batches of a step get the kind of the largest. With separate kinds there would be a kind of step for each
/// combination.
BatchSize larger(const BatchSize& one, const BatchSize& other) {
  return {std::max(one.rows, other.rows), std::max(one.longest, other.longest)};
}

/// Of a run's first steps, were it that long: one that is resumed, or extended, sees the same.
std::vector<BatchSize> sizes_of(const TokenizedTexts& texts, const RunPlan& plan, int64_t max_length) {
  const int64_t filler = texts.window_lengths.empty() ? 0 : 1;  // a row that to_graph_batch() may need
  std::vector<BatchSize> sizes;
  for (int64_t step = 0; step < kStepsToSee; ++step) {
    BatchSize size{};
    for (const MicroBatch& micro : plan.micro_batches(texts, step)) {
      const int64_t rows = count_rows(texts, micro.indices, plan.batching, max_length) + filler;
      for (const int64_t index : micro.indices) {
        size = larger(size, {rows, texts.longest(index)});
      }
    }
    sizes.push_back(size);
  }
  return sizes;
}

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
      kinds_(is_possible_ ? sizes_of(setup.train, plan, *config.max_length) : std::vector<BatchSize>(),
             setup.model->config().max_tokens()),
      step_(
          setup.device,
          [this](const std::vector<at::Tensor>& tensors) { return std::vector{compute_(unpack(tensors))}; },
          options_of(config)) {
  if (is_possible_) {
    step_offset_ = at::zeros({}, at::TensorOptions(at::kLong).device(setup.device));
    num_targets_ = at::zeros({}, at::TensorOptions(at::kFloat).device(setup.device));
  }
}

/// The windows of texts are as many in no two batches, so they are rounded up.
int64_t RecordedSteps::sequences_of(const StepBatches& batches, const PackedBatch& rows) const {
  if (!rows.window_counts.defined()) return rows.size();
  const auto fewer = [](const auto& a, const auto& b) { return a.rows.size() < b.rows.size(); };
  return round_sequences(std::ranges::max_element(batches.micro, fewer)->rows.size());
}

BatchSize RecordedSteps::kind_of(const StepBatches& batches) const {
  BatchSize size{};
  for (const StepBatches::Micro& micro : batches.micro) {
    size = larger(size, size_of(micro.rows, sequences_of(batches, micro.rows)));
  }
  return kinds_.round_up(size);
}

bool RecordedSteps::take(const StepBatches& batches) const {
  const auto dtype = autocast_dtype(setup_.precision).value_or(at::kFloat);
  return is_possible_ && setup_.model->encoder().takes_unknown_lengths(setup_.device, dtype, kind_of(batches).longest);
}

at::Tensor RecordedSteps::run(const StepBatches& batches, bool eagerly) {
  const auto tensors = pack(batches);
  std::vector<int64_t> numbers;
  for (const auto& micro : kind_.micro) {
    numbers.insert(numbers.end(), {micro.rows.max_seqlen, int64_t{micro.number}, int64_t{micro.is_stand_in}});
  }
  return eagerly ? compute_(unpack(tensors)) : step_(tensors, numbers).front();
}

/// Leaves the parts outside of the tensors in kind_.
std::vector<at::Tensor> RecordedSteps::pack(const StepBatches& batches) {
  const uint32_t first = batches.micro.front().number;
  step_offset_.fill_(int64_t{first});
  num_targets_.fill_(batches.num_targets.item());
  kind_ = {{}, num_targets_, step_offset_};
  const BatchSize kind = kind_of(batches);
  const bool is_of_words = setup_.model->head().rows == RowsPer::kToken;
  std::vector<at::Tensor> tensors;
  for (auto [rows, number, is_stand_in] : batches.micro) {
    if (is_of_words) {
      rows.targets =
          at::constant_pad_nd(rows.targets, {0, kind.rows - rows.targets.size(0)}, TokenizedTexts::kNoTarget);
    }
    auto batch = to_graph_batch(rows, kind, sequences_of(batches, rows), setup_.model->config().pad_token_id);
    tensors.insert(tensors.end(), batch.begin(), batch.end());
    kind_.micro.push_back({{}, number - first, is_stand_in});
    kind_.micro.back().rows.max_seqlen = kind.longest;
  }
  return tensors;
}

StepBatches RecordedSteps::unpack(const std::vector<at::Tensor>& tensors) const {
  StepBatches batches = kind_;
  for (size_t i = 0; i < batches.micro.size(); ++i) {
    PackedBatch& rows = batches.micro[i].rows;
    rows = from_graph_batch(&tensors[i * kGraphBatchTensors], rows.max_seqlen);
  }
  return batches;
}

}  // namespace mezzo::text
