#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <map>
#include <utility>
#include <vector>

#include "amp/traced_op.h"
#include "mezzo/amp/finite_tracer.h"

namespace mezzo {

/// Counts results that hold inf or NaN, op by op, where the results live. Not thread-safe.
class FiniteCounts {
 public:
  /// Notes a result of `op`. Never syncs.
  void add(const TracedOp& op, bool in_backward, const at::Tensor& values);

  /// Syncs.
  std::vector<FiniteTracer::Count> read();

 private:
  /// The least and greatest value of a result, still to be looked at.
  struct Range {
    size_t counter;
    c10::Stream stream;  // that computes them; what is made of them must go the same way
    at::Tensor least, greatest;
  };
  struct Counter {
    FiniteTracer::Count count;
    std::vector<std::pair<c10::Stream, at::Tensor>> non_finite;  // int64, one a stream
  };

  void fold();

  std::vector<Counter> counters_;
  std::map<std::pair<const TracedOp*, bool>, size_t> counter_of_;
  std::vector<Range> pending_;
};

}  // namespace mezzo
