#include "text/inference/recorded_forward.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "text/data/graph_batch.h"

namespace mezzo::text {
namespace {

/// Up to this number of rows, launches take longer than kernels, so filler costs nothing.
constexpr int64_t kFewRows = 512;

}  // namespace

RecordedForward::RecordedForward(ModelForTask& model, Precision precision, const GraphedStepOptions& options)
    : model_(model),
      device_(model.parameters().front().device()),
      dtype_(autocast_dtype(precision).value_or(at::kFloat)),
      kinds_({}, model.config().max_tokens()),
      passes_to_record_(options.warmup_steps() + 1),
      step_(device_, [this](const GraphedStep::Tensors& tensors) { return std::vector{forward(tensors)}; }, options) {}

bool RecordedForward::is_available(const ModelForTask& model) {
  return GraphedStep::is_available(model.parameters().front().device());
}

BatchSize RecordedForward::kind_of(const PackedBatch& batch, int64_t sequences) const {
  const auto kind = kinds_.round_up(size_of(batch, sequences));
  return kind.rows > kFewRows
             ? kind
             : BatchSize{static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(kind.rows))), kind.longest};
}

at::Tensor RecordedForward::forward(const GraphedStep::Tensors& tensors) {
  return model_.forward(from_graph_batch(tensors.data(), longest_).to(device_));
}

at::Tensor RecordedForward::run(const PackedBatch& batch) {
  const int64_t sequences = round_sequences(batch.size());
  const BatchSize kind = kind_of(batch, sequences);
  if (!model_.encoder().takes_unknown_lengths(device_, dtype_, kind.longest)) {
    return model_.forward(batch.to(device_));
  }
  PackedBatch rows = batch;
  rows.window_counts.reset();  // the caller pools windows, so texts may be as many as they like
  const auto tensors = to_graph_batch(rows, kind, sequences, model_.config().pad_token_id);
  longest_ = kind.longest;
  const auto outputs = [&] {
    if (goes_without_) return forward(tensors);
    try {
      return step_(tensors, longest_).front();
    } catch (const c10::Error& error) {
      step_.reset();
      auto without = forward(tensors);  // throws errors that graphs do not cause
      goes_without_ = true;
      const std::string why = error.what_without_backtrace();
      TORCH_WARN("prediction launches each kernel by itself from now on: ", why.substr(0, why.find('\n')));
      return without;
    }
  }();
  const bool is_by_token = model_.head().rows == RowsPer::kToken;
  return outputs.narrow(0, 0, is_by_token ? batch.input_ids.size(0) : batch.size());
}

std::vector<int64_t> RecordedForward::short_lengths(int64_t longest) const {
  std::vector<int64_t> lengths;
  for (int64_t tokens = 1; tokens <= std::min(kFewRows, longest);) {
    const int64_t most = kinds_.round_up({tokens, tokens}).longest;
    lengths.push_back(std::min(most, longest));
    tokens = most + 1;
  }
  return lengths;
}

}  // namespace mezzo::text
