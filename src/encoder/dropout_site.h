#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "kernels/random_key.h"

namespace mezzo::encoder {

using kernels::RandomKey;

/// A dropout: its probability, 0 for none, and what keys its masks.
struct DropoutSite {
  double p = 0;
  RandomKey key;
  /// 0-dim int64 on the device that draws, added to key.step there; undefined for 0. It lets a step
  /// that is recorded into a graph draw other masks each time. Must not change before backward.
  at::Tensor step_offset = {};

  /// As operators get one: the key's bits in the one kind of integer that schemas know. An offset
  /// on the CPU is read at once.
  /// @param device  of the tensor to drop from
  /// @throws c10::ValueError  unless p is in [0, 1), or for an offset that is not 0-dim int64 on
  ///     the CPU or on `device`
  static DropoutSite of(double p,
                        int64_t seed,
                        int64_t step,
                        int64_t site,
                        const std::optional<at::Tensor>& step_offset,
                        const at::Device& device);
};

}  // namespace mezzo::encoder
