#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace mezzo {

/// Gradients to count together, such as those of one layer. Undefined tensors are passed over.
struct NamedGradients {
  std::string name;
  std::vector<at::Tensor> gradients;
};

/// How the magnitudes of some gradients are spread over the powers of two, and what float16 would
/// keep of them at a loss scale.
struct GradientExponents {
  static constexpr int kLowest = -149;  ///< exponent of the smallest subnormal float32
  static constexpr int kHighest = 127;
  static constexpr size_t kBins = kHighest - kLowest + 1;

  std::string name;
  std::array<int64_t, kBins> counts{};  ///< [e - kLowest]: how many have 2^e <= |g| < 2^(e+1)
  int64_t zeros = 0;
  int64_t non_finite = 0;
  double largest = 0;       ///< the largest finite magnitude
  int64_t underflowed = 0;  ///< of those counted, how many are 0 at the scale in use, where somebody has compared

  int64_t count(int exponent) const { return counts[static_cast<size_t>(exponent - kLowest)]; }
  /// Finite values that are not 0: what the shares are shares of.
  int64_t nonzero() const;

  /// The share of them that float16 rounds to 0 when multiplied by `scale`: magnitudes below 2^-25.
  /// 0 where there are none. Exact for a power of two; another scale is rounded down to one.
  double share_lost(double scale) const;
  /// The share of them that is lost at the scale in use: what was compared,
  /// else `share_lost(scale)`.
  double share_underflowed(double scale) const;
  /// The share that float16 keeps with fewer than its 11 bits: below 2^-14, and not lost.
  double share_subnormal(double scale) const;
  /// How often the scale could double before the largest exceeds 65504; negative where it does so
  /// already, infinite where all are 0.
  double headroom(double scale) const;
};

/// Counts the exponents of gradients, group by group. float64 gradients are counted as float32;
/// sparse ones by their values. Waits for the device once.
/// @param scale  what the gradients are still multiplied by; 1 for true ones, as after `unscale_`.
/// @throws c10::ValueError  for a scale that is not positive and finite, or a
///   gradient that is not floating.
std::vector<GradientExponents> count_gradient_exponents(const std::vector<NamedGradients>& groups, double scale = 1);

/// Which loss scale suits the gradients of a float16 run.
struct ScaleAdvice {
  std::vector<GradientExponents> groups;
  double scale = 1;              ///< the current one
  double recommended_scale = 1;  ///< a power of two
  bool needs_scale = false;      ///< float16 would lose more than one in a thousand at scale 1, in some group

  /// What speaks against the current scale, in one line: too small, with the groups that lose
  /// the most, or too large; or that it cannot be told where all gradients of a group are 0.
  /// Empty where nothing does.
  std::string objection() const;

  /// A table: one line a group, the recommendation and any objection; ends with a line feed.
  std::string to_string() const;
};

/// Judges gradients by their largest value and what float16 loses of the others. Recommends the
/// largest power of two that leaves the largest gradient two doublings (a factor of 4 to 8) below
/// 65504: by such a factor gradients vary from batch to batch. It sees the weights' gradients
/// alone, not those of activations: take it as a start for `init_scale`; the scaler finds the rest.
/// Always between 2^-24 and 2^24, beyond which a float32 loss in the millions, or gradients of one
/// part in a million, would suffer.
ScaleAdvice advise_scale(std::vector<GradientExponents> groups, double current_scale);

}  // namespace mezzo
