#pragma once

#include "mezzo/cpp20.h"

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "mezzo/text/data/packed_batch.h"
#include "mezzo/text/models/precision.h"

namespace mezzo::text {

struct GraphTexts;

/// The meaning of an output row.
enum class RowsPer {
  kText,  ///< [B, ...]: row b belongs to text b, from its first token
  kToken  ///< [T, ...]: the rows of the batch, including padding and filler
};

/// Memory per row of a batch in training, in bytes, as on CPUs; for relative positions, as on the
/// device.
struct RowBytes {
  double embeddings = 0;  ///< kept for backward by all parts before the first layer
  double layer = 0;       ///< kept for backward by each layer except the last
  double work = 0;        ///< additional maximum while backward is in a layer
  double tables = 0;      ///< kept for backward by each layer, for all rows together: relative positions
};

/// The part of a model that turns tokens into rows: embeddings and layers, on packed batches.
class Encoder : public torch::nn::Module {
 public:
  /// @param random  key of every dropout mask in training mode (`train()`); ignored after `eval()`
  /// @param rows  of the last layer; with kText it computes no other rows
  /// @return [B, H], after the family's pooler if it has one, or [T, H]: float32, or autocast's
  ///     dtype
  virtual at::Tensor forward(const PackedBatch& batch, const DropoutSeed& random, RowsPer rows) = 0;

  /// Whether `device` can run forward and backward on batches whose lengths only the device knows
  /// (PackedBatch::sequence_table). This is necessary to record a step into a graph. Otherwise
  /// every batch needs its lengths on the CPU.
  /// @param dtype  of products: autocast's, or the weights'
  /// @param max_seqlen  tokens of the longest text
  virtual bool takes_unknown_lengths(const at::Device& device, at::ScalarType dtype, int64_t max_seqlen) const = 0;

  /// In training, each layer keeps only its input for backward and is recomputed in backward.
  virtual void set_gradient_checkpointing(bool on) = 0;

  /// The index of a parameter: 0 for the embeddings, 1 to num_hidden_layers for the layers, and one
  /// more for later parts, which an encoder may lack.
  /// @param parameter  its name within the encoder: "encoder.layer.0.output.dense.weight"
  virtual int64_t layer_of(std::string_view parameter) const = 0;

  /// Adds the computation of forward() to an ONNX graph, without dropout, for padded batches.
  /// @return the name of a value [B, H] or [B, S, H]
  virtual std::string add_to(const GraphTexts& texts, RowsPer rows) const = 0;

  /// For the estimate of a run's memory, which tests/python/program/test_memory.py compares with
  /// measurements.
  /// @param longest  tokens of the batch's longest text
  virtual RowBytes row_bytes(Precision precision, int64_t longest) const = 0;
};

}  // namespace mezzo::text
