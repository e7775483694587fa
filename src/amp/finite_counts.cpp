#include "amp/finite_counts.h"

#include <ATen/ops/stack.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <tuple>

#include "amp/traced_tensor.h"

namespace mezzo {
namespace {

constexpr size_t kMostPending = 512;  // looked at together, as each look costs some kernels

}  // namespace

void FiniteCounts::add(const TracedOp& op, bool in_backward, const at::Tensor& values) {
  const auto [found, is_new] = counter_of_.try_emplace({&op, in_backward}, counters_.size());
  if (is_new) {
    counters_.push_back({{.op = op.name, .in_backward = in_backward}, {}});
  }
  ++counters_[found->second].count.results;
  auto [least, greatest] = range_of(values);
  const auto stream = c10::impl::VirtualGuardImpl(values.device().type()).getStream(values.device());
  pending_.push_back({found->second, stream, std::move(least), std::move(greatest)});
  if (pending_.size() >= kMostPending) {
    fold();
  }
}

/// Turns pending ranges into counts, all of one op, stream and dtype together.
void FiniteCounts::fold() {
  const auto key = [](const Range& range) {
    return std::make_tuple(range.counter, range.stream.hash(), range.least.scalar_type());
  };
  std::stable_sort(pending_.begin(), pending_.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  for (size_t begin = 0, end = 0; begin < pending_.size(); begin = end) {
    std::vector<at::Tensor> bounds;
    for (; end < pending_.size() && key(pending_[end]) == key(pending_[begin]); ++end) {
      bounds.push_back(pending_[end].least);
      bounds.push_back(pending_[end].greatest);
    }
    const auto stream = pending_[begin].stream;
    const c10::StreamGuard on_stream(stream);
    const auto non_finite = at::stack(bounds).view({-1, 2}).isfinite().all(/*dim=*/1).logical_not_().sum();
    auto& totals = counters_[pending_[begin].counter].non_finite;
    const auto total = std::find_if(totals.begin(), totals.end(), [&](auto& entry) { return entry.first == stream; });
    if (total == totals.end()) {
      totals.emplace_back(stream, non_finite);
    } else {
      total->second += non_finite;
    }
  }
  pending_.clear();
}

std::vector<FiniteTracer::Count> FiniteCounts::read() {
  fold();
  std::vector<FiniteTracer::Count> counts;
  for (const Counter& counter : counters_) {
    auto& count = counts.emplace_back(counter.count);
    for (const auto& [stream, non_finite] : counter.non_finite) {
      const c10::StreamGuard on_stream(stream);
      count.non_finite += non_finite.item<int64_t>();
    }
  }
  return counts;
}

}  // namespace mezzo
