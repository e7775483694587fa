#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace mezzo {

/// Gradients to count together, such as the gradients of one layer. Undefined tensors are ignored.
struct NamedGradients {
  std::string name;                   ///< of the group, for the report
  std::vector<at::Tensor> gradients;  ///< of any shape, floating
};

/// The distribution of some gradients' magnitudes over the powers of two, and the share that
/// float16 keeps at a loss scale.
struct GradientExponents {
  static constexpr int kLowest = -149;                     ///< exponent of the smallest subnormal float32
  static constexpr int kHighest = 127;                     ///< exponent of the largest float32
  static constexpr size_t kBins = kHighest - kLowest + 1;  ///< length of `counts`
  std::string name;                                        ///< of the group
  std::array<int64_t, kBins> counts{};  ///< [e - kLowest]: number of values with 2^e <= |g| < 2^(e+1)
  int64_t zeros = 0;                    ///< number of zeros
  int64_t non_finite = 0;               ///< number of inf and NaN
  double largest = 0;                   ///< the largest finite magnitude
  int64_t underflowed = 0;  ///< number of counted values that are 0 at the scale in use, if they were compared

  /// The number of values with 2^exponent <= |g| < 2^(exponent + 1).
  int64_t count(int exponent) const { return counts[static_cast<size_t>(exponent - kLowest)]; }
  /// The number of finite values that are not 0: the whole of all shares below.
  int64_t nonzero() const;

  /// The share that float16 rounds to 0 after a multiplication by `scale`: magnitudes below 2^-25.
  /// 0 without values. Exact for a power of two; another scale is rounded down to a power of two.
  double share_lost(double scale) const;
  /// The share that is lost at the scale in use: the compared count, else `share_lost(scale)`.
  double share_underflowed(double scale) const;
  /// The share that float16 keeps with fewer than its 11 bits: below 2^-14, and not lost.
  double share_subnormal(double scale) const;
  /// The number of doublings of the scale until the largest value exceeds 65504. Negative if it
  /// already exceeds 65504, infinite if all values are 0.
  double headroom(double scale) const;
};

/// Counts the exponents of gradients, group by group. float64 gradients are counted as float32, and
/// sparse ones by their values. Waits for the device once.
/// @param scale  the current factor of the gradients; 1 for true gradients, as after `unscale_`
/// @throws c10::ValueError  for a scale that is not positive and finite, or a gradient that is not
///     floating
std::vector<GradientExponents> count_gradient_exponents(const std::vector<NamedGradients>& groups, double scale = 1);

/// A recommended loss scale for the gradients of a float16 run.
struct ScaleAdvice {
  std::vector<GradientExponents> groups;  ///< the counted groups
  double scale = 1;                       ///< the current one
  double recommended_scale = 1;           ///< a power of two
  bool needs_scale = false;               ///< float16 would lose more than one in a thousand at scale 1, in some group

  /// One line with the objection to the current scale: too small, with the groups that lose the
  /// most, or too large. If all gradients of a group are 0, it says that the scale cannot be
  /// judged. Empty without an objection.
  std::string objection() const;

  /// A table: one line per group, the recommendation and any objection. Ends with a line feed.
  std::string to_string() const;
};

/// Judges gradients by their largest value and the share that float16 loses. Recommends the largest
/// power of two that keeps the largest gradient two doublings (a factor of 4 to 8) below 65504.
/// Gradients vary by such a factor from batch to batch.
///
/// It sees only the gradients of weights, not of activations. Use it as a start for `init_scale`;
/// the scaler finds the rest. The result is between 2^-24 and 2^24. Beyond these limits, a float32
/// loss in the millions or gradients of one part in a million would lose precision.
ScaleAdvice advise_scale(std::vector<GradientExponents> groups, double current_scale);

}  // namespace mezzo
