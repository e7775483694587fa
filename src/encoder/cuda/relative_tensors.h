#pragma once

#include <ATen/core/Tensor.h>

#include "encoder/block_ops.h"
#include "encoder/cuda/attention_launchers.h"

namespace mezzo::encoder::MEZZO_CUDA {

/// The relative positions of an attention, if there are any: products that its kernels read, their gradients, which
/// the kernels write, and what comes of these. In memory for each row of the matrices and of the tables, head by head.
class RelativeTensors {
 public:
  /// Queues the products.
  /// @param attention  which must outlive this; its tables of the dtype of its matrices
  RelativeTensors(const PackedAttention& attention, Stream stream);

  RelativeScores scores() const;

  /// Room for their gradients.
  void make_room(PackedAttentionBackwardArguments& arguments);

  /// Once the kernels that write these are queued: adds to gradients of queries, keys and biases, and makes those of
  /// the tables.
  void add_gradients(AttentionGradients& gradients, Stream stream);

 private:
  at::Tensor by_heads(const at::Tensor& rows) const;
  FirstQueryScoresArguments first_query_arguments() const;

  const PackedAttention& attention_;
  const RelativePositions& relative_;
  at::Tensor query_, key_;  // with their biases, where they meet a table
  at::Tensor of_queries_, of_keys_, grad_of_queries_, grad_of_keys_;
};

}  // namespace mezzo::encoder::MEZZO_CUDA
