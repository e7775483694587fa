#include "kernels/cpu/simd/element_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/simd/instruction_set.h"
#include "kernels/philox.h"
#include "not_finite.h"

// Knows nothing of LibTorch, so that scripts/check_arm64.sh can run it. Everything is compared bit
// by bit, but one NaN is as good as another.

namespace mezzo::kernels::cpu {
namespace {

using Numbers = std::vector<float>;
using Words = std::vector<uint16_t>;

constexpr auto kSizes = {1, 7, 16, 31, 127, 128, 1000, 1024};

/// Runs `test` with the kernels of each instruction set of this machine.
template <class Test>
void with_all_kernels(const Test& test) {
  for (size_t i = 0; i < all_element_kernels().size(); ++i) {
    SCOPED_TRACE(name_of(static_cast<InstructionSet>(i)));
    test(*all_element_kernels()[i]);
  }
}

void expect_same(const Numbers& mine, const Numbers& right) {
  ASSERT_EQ(mine.size(), right.size());
  for (size_t i = 0; i < mine.size(); ++i) {
    if (!std::isnan(mine[i]) || !std::isnan(right[i])) {
      ASSERT_EQ(std::memcmp(&mine[i], &right[i], sizeof(float)), 0) << mine[i] << " " << right[i] << " at " << i;
    }
  }
}

float of_bits(uint32_t bits) {
  float number;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

const float kLargestNan = of_bits(0x7FFFFFFF);  // to which nothing can be added

class ElementKernelsTest : public testing::Test {
 protected:
  Numbers normal(size_t count, float scale = 1) {
    Numbers numbers(count);
    for (float& number : numbers) {
      number = scale * std::normal_distribution<float>()(random_);
    }
    return numbers;
  }

  Numbers positive(size_t count) {
    auto numbers = normal(count, 0.1f);
    std::for_each(numbers.begin(), numbers.end(), [](float& number) { number = std::fabs(number); });
    return numbers;
  }

  /// Some gradients that are inf or NaN, or too small to leave a normal moment.
  Numbers gradients(size_t count) {
    auto numbers = normal(count, 8);
    constexpr std::array special{kInf, -kInf, kNaN, 0.0f, -0.0f, 1e-38f, 1e-44f};
    for (size_t i = 3; i < count; i += 41) {
      numbers[i] = special[i / 41 % special.size()];
    }
    return numbers;
  }

  Numbers any_numbers(size_t count) {
    Numbers numbers(count);
    for (float& number : numbers) {
      number = of_bits(static_cast<uint32_t>(random_()));
    }
    return numbers;
  }

 private:
  std::mt19937 random_{1};
};

struct Format {
  Element element;
  int digits, least_exponent;  ///< of a normal number's significand; of the smallest normal number
};
constexpr Format kHalfFormat{Element::kHalf, 11, -14}, kBFloat16Format{Element::kBFloat16, 8, -126};

double value_of(uint16_t word, const Format& format) {
  const int bits = format.digits - 1, exponent = (word & 0x7FFF) >> bits, fraction = word & ((1 << bits) - 1);
  const double sign = word >> 15 != 0 ? -1 : 1;
  if (exponent == (1 << (15 - bits)) - 1) {
    return fraction != 0 ? kNaN : sign * kInf;
  }
  const int significand = exponent == 0 ? fraction : fraction + (1 << bits);
  return sign * std::ldexp(significand, format.least_exponent - bits + std::max(exponent - 1, 0));
}

/// To nearest even.
double rounded(double x, const Format& format) {
  if (x == 0 || !std::isfinite(x)) {
    return x;
  }
  const double step = std::ldexp(1, std::max(std::ilogb(x), format.least_exponent) - format.digits + 1);
  const double nearest = std::nearbyint(x / step) * step;
  const double largest = std::ldexp(2 - std::ldexp(1, 1 - format.digits), 1 - format.least_exponent);
  return std::fabs(nearest) > largest ? std::copysign(kInf, x) : nearest;
}

TEST_F(ElementKernelsTest, WidenEveryNumber) {
  Words words(1 << 16);
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = static_cast<uint16_t>(i);
  }
  with_all_kernels([&](const ElementKernels& kernels) {
    for (const Format& format : {kHalfFormat, kBFloat16Format}) {
      Numbers mine(words.size()), right(words.size());
      kernels.to_float({words.data(), format.element}, mine.data(), 1 << 16);
      std::transform(words.begin(), words.end(), right.begin(),
                     [&](uint16_t word) { return static_cast<float>(value_of(word, format)); });
      expect_same(mine, right);
    }
  });
}

TEST_F(ElementKernelsTest, RoundToNearestEven) {
  Numbers numbers = any_numbers(50'001);
  numbers.push_back(kLargestNan);
  for (const Format& format : {kHalfFormat, kBFloat16Format}) {
    for (int word = 0; word < 0x7FFF; word += 3) {  // numbers, those halfway to the next, and float32's neighbours
      const double low = value_of(static_cast<uint16_t>(word), format);
      const auto middle = static_cast<float>(low + (value_of(static_cast<uint16_t>(word + 1), format) - low) / 2);
      for (const float number : {static_cast<float>(low), middle, std::nextafter(middle, 0.0f)}) {
        numbers.insert(numbers.end(), {number, -number, std::nextafter(number, kInf)});
      }
    }
  }
  const auto count = static_cast<int64_t>(numbers.size());
  with_all_kernels([&](const ElementKernels& kernels) {
    for (const Format& format : {kHalfFormat, kBFloat16Format}) {
      Words words(numbers.size());
      kernels.from_float(numbers.data(), {words.data(), format.element}, count);
      Numbers mine, right;
      for (size_t i = 0; i < numbers.size(); ++i) {
        mine.push_back(static_cast<float>(value_of(words[i], format)));
        right.push_back(static_cast<float>(rounded(numbers[i], format)));
      }
      expect_same(mine, right);
    }
  });
}

TEST_F(ElementKernelsTest, WriteNothingBehindTheLastElement) {
  with_all_kernels([&](const ElementKernels& kernels) {
    for (const int64_t size : kSizes) {
      const auto numbers = normal(size);
      Words words(size + 1, 0xABCD);
      kernels.from_float(numbers.data(), {words.data(), Element::kBFloat16}, size);
      EXPECT_EQ(words.back(), 0xABCD);
      Numbers widened(size + 1, 7);
      kernels.to_float({words.data(), Element::kHalf}, widened.data(), size);
      EXPECT_EQ(widened.back(), 7);
    }
  });
}

constexpr RandomKey kKey{.seed = 0x123456789ABCDEF, .step = 77, .site = 9};

uint32_t random_word(int64_t number) {
  const auto block = static_cast<uint64_t>(number) / 4;
  return Philox::generate({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), kKey.step, kKey.site},
                          kKey.seed)[number % 4];
}

TEST_F(ElementKernelsTest, RoundAsOftenUpAsPhiloxsHalfWordsSay) {
  with_all_kernels([&](const ElementKernels& kernels) {
    for (const int64_t first : {int64_t{0}, int64_t{1} << 35}) {  // the second, in blocks of an upper word
      const auto numbers = normal(1000);
      Words mine(1000), right(1000);
      for (int64_t i = 0; i < 1000; ++i) {
        uint32_t bits;
        std::memcpy(&bits, &numbers[i], sizeof bits);
        const uint32_t word = random_word((first + i) / 2), half = i % 2 == 0 ? word & 0xFFFF : word >> 16;
        right[i] = static_cast<uint16_t>((bits + half) >> 16);
      }
      kernels.round_stochastically(numbers.data(), mine.data(), first, 1000, kKey);
      EXPECT_EQ(mine, right);
    }
    const Numbers nan(128, kLargestNan);
    Words mine(128);
    kernels.round_stochastically(nan.data(), mine.data(), 0, 128, kKey);
    EXPECT_TRUE(std::isnan(value_of(mine[0], kBFloat16Format)));
  });
}

float flushed(float moment, float least) { return std::fabs(moment) < least ? 0 : moment; }

TEST_F(ElementKernelsTest, AdamRoundsWhereItSays) {
  with_all_kernels([&](const ElementKernels& kernels) {
    for (const int64_t size : kSizes) {
      for (const float weight_decay : {0.0f, 0.01f}) {
        for (const float mean_weight : {0.1f, 0.7f}) {
          const AdamConstants c{.factors = {0.125f, 0.7f},
                                .weight_decay = weight_decay,
                                .shrink = 0.999f,
                                .mean_weight = mean_weight,
                                .beta2 = 0.999f,
                                .square_weight = 0.001f,
                                .step_size = 0.01f,
                                .root_bias = 0.3f,
                                .eps = 1e-8f,
                                .least = 0x1p-126f};
          const auto gradient = gradients(size);
          const auto start = normal(size), mean = normal(size, 0.1f), square = positive(size), largest = positive(size);
          auto right = start, right_mean = mean, right_square = square, right_largest = largest, right_amsgrad = start;
          for (int64_t i = 0; i < size; ++i) {
            const float scaled = gradient[i] * c.factors.inv_scale * c.factors.clip;
            const float grad = weight_decay != 0 ? std::fma(start[i], weight_decay, scaled) : scaled;
            const float step = grad - mean[i];
            const float m =
                mean_weight < 0.5f ? std::fma(mean_weight, step, mean[i]) : std::fma(mean_weight - 1, step, grad);
            const float s = std::fma(c.square_weight * grad, grad, square[i] * c.beta2);
            const float most = largest[i] >= s ? largest[i] : s;
            right[i] = start[i] * c.shrink - c.step_size * m / (std::sqrt(s) / c.root_bias + c.eps);
            right_amsgrad[i] = start[i] * c.shrink - c.step_size * m / (std::sqrt(most) / c.root_bias + c.eps);
            right_mean[i] = flushed(m, c.least);
            right_square[i] = flushed(s, c.least);
            right_largest[i] = flushed(most, c.least);
          }
          auto mine = start, my_mean = mean, my_square = square, my_largest = largest;
          kernels.adam(mine.data(), gradient.data(), my_mean.data(), my_square.data(), nullptr, size, c);
          expect_same(mine, right);
          expect_same(my_mean, right_mean);
          expect_same(my_square, right_square);
          mine = start, my_mean = mean, my_square = square;
          kernels.adam(mine.data(), gradient.data(), my_mean.data(), my_square.data(), my_largest.data(), size, c);
          expect_same(mine, right_amsgrad);
          expect_same(my_largest, right_largest);
        }
      }
    }
  });
}

TEST_F(ElementKernelsTest, AdamWithoutGradientTakesTheStepsOfAdam) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  with_all_kernels([&](const ElementKernels& kernels) {
    for (const AdamSettings settings : {AdamSettings{0.9, 0.999, 1e-8, false, true},
                                        AdamSettings{0.5, 0.9, 1e-30, false, true},   // denormals are kept
                                        AdamSettings{0.5, 0.9, 0, false, true},       // 0 / 0
                                        AdamSettings{0.5, 0.9, 1e-8, false, false}})  // the decay is a gradient
    {
      for (const size_t size : {1, 63, 64, 200}) {
        for (const float scale : {0.0f, 1e-36f, 1.0f}) {  // moments that are 0, become 0, and do not
          auto param = normal(size), mean = normal(size, scale), square = normal(size, scale * scale);
          for (float& number : square) number = std::fabs(number);
          if (size > 64) {  // of the second block; the others may be at rest
            param[70] = -0.0f, mean[71] = -0.0f, square[72] = -0.0f, square[73] = kInf, square[74] = kLargestNan;
            mean[75] = kLargestNan, param[76] = kInf;
          }
          std::vector<AdamConstants> steps;
          for (int step = 1; step <= 400; ++step) {
            steps.push_back(adam_constants(settings, 1e-3 * step, 0.01, step, {}, settings.eps == 1e-8));
          }
          const Numbers no_gradient(size);
          auto right = param, right_mean = mean, right_square = square;
          for (const AdamConstants& step : steps) {
            kernels.adam(right.data(), no_gradient.data(), right_mean.data(), right_square.data(), nullptr,
                         static_cast<int64_t>(size), step);
          }
          kernels.adam_without_gradient(param.data(), mean.data(), square.data(), static_cast<int64_t>(size),
                                        steps.data(), static_cast<int64_t>(steps.size()));
          expect_same(param, right);
          expect_same(mean, right_mean);
          expect_same(square, right_square);
        }
      }
    }
  });
}

TEST_F(ElementKernelsTest, SgdRoundsWhereItSays) {
  with_all_kernels([&](const ElementKernels& kernels) {
    for (const int64_t size : kSizes) {
      for (const float weight_decay : {0.0f, 0.01f}) {
        for (const bool nesterov : {false, true}) {
          const SgdConstants c{.factors = {0.125f, 0.7f},
                               .weight_decay = weight_decay,
                               .lr = 0.01f,
                               .momentum = 0.9f,
                               .grad_weight = 0.75f,
                               .nesterov = nesterov,
                               .least = 0x1p-126f};
          const auto gradient = gradients(size), start = normal(size), buffer = normal(size);
          auto plain = start, right = start, right_buffer = buffer;
          for (int64_t i = 0; i < size; ++i) {
            const float scaled = gradient[i] * c.factors.inv_scale * c.factors.clip;
            const float grad = weight_decay != 0 ? std::fma(start[i], weight_decay, scaled) : scaled;
            const float moved = buffer[i] * c.momentum + grad * c.grad_weight;
            plain[i] = std::fma(grad, -c.lr, start[i]);
            right[i] = std::fma(nesterov ? std::fma(moved, c.momentum, grad) : moved, -c.lr, start[i]);
            right_buffer[i] = flushed(moved, c.least);
          }
          auto mine = start, my_buffer = buffer;
          kernels.sgd(mine.data(), gradient.data(), nullptr, size, c);
          expect_same(mine, plain);
          mine = start;
          kernels.sgd(mine.data(), gradient.data(), my_buffer.data(), size, c);
          expect_same(mine, right);
          expect_same(my_buffer, right_buffer);
        }
      }
    }
  });
}

TEST_F(ElementKernelsTest, LambRoundsEachOperation) {
  const LambConstants c{.factors = {0.125f, 0.7f},
                        .weight_decay = 0.01f,
                        .beta1 = 0.9f,
                        .mean_weight = 0.1f,
                        .beta2 = 0.999f,
                        .square_weight = 0.001f,
                        .bias1 = 0.3f,
                        .bias2 = 0.2f,
                        .eps = 1e-6f};
  with_all_kernels([&](const ElementKernels& kernels) {
    for (const int64_t size : kSizes) {
      const auto gradient = normal(size, 8), start = normal(size), mean = normal(size, 0.1f), square = positive(size);
      auto right = start, right_mean = mean, right_square = square;
      double of_param[8] = {}, of_direction[8] = {};
      for (int64_t i = 0; i < size; ++i) {
        const float grad = gradient[i] * c.factors.inv_scale * c.factors.clip;
        right_mean[i] = mean[i] * c.beta1 + grad * c.mean_weight;
        right_square[i] = square[i] * c.beta2 + grad * grad * c.square_weight;
        const float direction =
            right_mean[i] / c.bias1 / (std::sqrt(right_square[i] / c.bias2) + c.eps) + start[i] * c.weight_decay;
        right[i] = start[i] - 0.02f * direction;
        const int64_t lane = i < size / 8 * 8 ? i % 8 : 0;  // eight sums; the first also has the left-over elements
        of_param[lane] += double{start[i]} * start[i];
        of_direction[lane] += double{direction} * direction;
      }
      LambNorms right_norms{};
      for (int lane = 0; lane < 8; ++lane) {
        right_norms.param += of_param[lane];
        right_norms.direction += of_direction[lane];
      }
      auto mine = start, my_mean = mean, my_square = square;
      kernels.lamb_moments(gradient.data(), my_mean.data(), my_square.data(), size, c);
      const auto norms = kernels.lamb_norms(mine.data(), my_mean.data(), my_square.data(), size, c);
      kernels.lamb_params(mine.data(), my_mean.data(), my_square.data(), size, 0.02f, c);
      expect_same(my_mean, right_mean);
      expect_same(my_square, right_square);
      expect_same(mine, right);
      EXPECT_EQ(norms.param, right_norms.param);
      EXPECT_EQ(norms.direction, right_norms.direction);
    }
  });
}

TEST_F(ElementKernelsTest, AddAndSumSquaresInOneOrder) {
  with_all_kernels([&](const ElementKernels& kernels) {
    for (const int64_t size : kSizes) {
      auto a = normal(size), b = normal(size, 1e-3f), right = a;
      double squares = 0, lanes[16] = {};
      for (int64_t i = 0; i < size; ++i) {
        right[i] += b[i];
        (i < size / 16 * 16 ? lanes[i % 16] : squares) += double{b[i]} * b[i];
      }
      for (const double lane : lanes) {
        squares += lane;
      }
      EXPECT_EQ(kernels.sum_of_squares(b.data(), size), squares);
      kernels.add(a.data(), b.data(), b.data(), size);
      expect_same(b, right);
    }
    EXPECT_EQ(kernels.sum_of_squares(Numbers(17, 1e30f).data(), 17), 17 * (double{1e30f} * 1e30f));
  });
}

TEST(InstructionSetTest, IsTheBestOrWhatTheEnvironmentAsksFor) {
  const char* wanted = std::getenv("MEZZO_CPU_CAPABILITY");
  if (const char* amx = std::getenv("MEZZO_AMX"); amx != nullptr && std::string_view(amx) == "1") {
    wanted = "avx512_amx";
  }
  EXPECT_STREQ(name_of(instruction_set()), wanted != nullptr ? wanted : name_of(best_instruction_set()));
  const auto all = all_element_kernels();
  EXPECT_EQ(&element_kernels(), all[std::min(all.size() - 1, static_cast<size_t>(instruction_set()))]);
}

}  // namespace
}  // namespace mezzo::kernels::cpu
