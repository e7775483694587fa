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

/// What there is a row for.
enum class RowsPer {
  kText,  ///< [B, ...]: text b's is that of its first token
  kToken  ///< [T, ...]: as the rows of the batch, padding and filler included
};

/// Bytes of memory that a row of a batch takes in training, as CPUs have it; of relative positions, as its device does.
struct RowBytes {
  double embeddings = 0;  ///< kept for backward by all before the first layer
  double layer = 0;       ///< kept for backward by a layer other than the last
  double work = 0;        ///< beside these, at most, while backward is in a layer
  double tables = 0;      ///< kept for backward by each layer, not a row but all of them: of relative positions
};

/// The part of a model that turns tokens into rows: embeddings and layers, on packed batches.
class Encoder : public torch::nn::Module {
 public:
  /// @param random  keys every dropout mask in training mode (`train()`);
  ///   without effect after `eval()`.
  /// @param rows  of the last layer; with kText it computes no others.
  /// @return [B, H], through the pooler where the family has one, or [T, H]: float32, or
  ///   what autocast makes of it.
  virtual at::Tensor forward(const PackedBatch& batch, const DropoutSeed& random, RowsPer rows) = 0;

  /// Whether batches whose lengths the device alone knows (PackedBatch::sequence_table) can pass
  /// forward and backward on `device`, which a step must do to be recorded into a graph. Where not,
  /// every batch needs its lengths on the CPU.
  /// @param dtype  that products are computed in: autocast's, or the weights'
  /// @param max_seqlen  tokens of the longest text
  virtual bool takes_unknown_lengths(const at::Device& device, at::ScalarType dtype, int64_t max_seqlen) const = 0;

  /// In training, each layer keeps only its input for backward and is computed again there.
  virtual void set_gradient_checkpointing(bool on) = 0;

  /// The place of a parameter: 0 for the embeddings, 1 to num_hidden_layers for the layers, and one
  /// more for what comes after them, which an encoder may lack.
  /// @param parameter  its name within the encoder: "encoder.layer.0.output.dense.weight"
  virtual int64_t layer_of(std::string_view parameter) const = 0;

  /// Adds what forward() computes to an ONNX graph, without dropout, for padded batches.
  /// @return the name of a value [B, H] or [B, S, H].
  virtual std::string add_to(const GraphTexts& texts, RowsPer rows) const = 0;

  /// For the estimate of a run's memory, which tests/python/program/test_memory.py compares with
  /// what is measured.
  /// @param longest  tokens of the batch's longest text
  virtual RowBytes row_bytes(Precision precision, int64_t longest) const = 0;
};

}  // namespace mezzo::text
