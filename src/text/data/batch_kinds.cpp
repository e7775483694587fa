#include "text/data/batch_kinds.h"

#include <ATen/ceil_div.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <utility>

namespace mezzo::text {
namespace {

/// One text longer than the rest should not make a separate kind.
constexpr int64_t kShortest = 32;  // tokens, which attention takes in one launch

/// A kind has to save that part of all rows: a recording takes as long as some ten steps, of a few thousand.
constexpr double kWorthAKind = 0.0025;
/// Share of steps from which a length gets separate kinds.
constexpr double kWorthALength = 0.02;

// Batches with fewer rows than kLarge come with any number of rows. Their kinds have multiples of kRowMultiple.
constexpr int64_t kLarge = 512, kRowMultiple = 32;

/// To a multiple of an eighth of the next smaller power of two: 6 % of filler on average.
int64_t rounded_rows(int64_t rows) {
  const auto eighth = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(rows)) / 8);
  return at::round_up(rows, std::max(kRowMultiple, eighth));
}

using Histogram = std::map<int64_t, int64_t>;  // how often each number of rows comes up

/// The best of the numbers to round up to: with the least filler, if each costs `price` rows.
std::vector<int64_t> best_kinds(const Histogram& rows, double price) {
  const std::vector<std::pair<int64_t, int64_t>> sorted(rows.begin(), rows.end());
  const auto count = std::ssize(sorted);
  // least[i]: of the first i numbers, if the last of them is a kind; before[i]: how many the kind before it covers
  std::vector<double> least(count + 1, std::numeric_limits<double>::infinity());
  std::vector<int64_t> before(count + 1);
  least[0] = 0;
  for (int64_t i = 1; i <= count; ++i) {
    double filler = 0;
    for (int64_t j = i - 1; j >= 0; --j) {
      filler += static_cast<double>((sorted[i - 1].first - sorted[j].first) * sorted[j].second);
      if (least[j] + filler + price < least[i]) {
        least[i] = least[j] + filler + price;
        before[i] = j;
      }
    }
  }
  std::vector<int64_t> kinds;
  for (int64_t i = count; i > 0; i = before[i]) {
    kinds.push_back(sorted[i - 1].first);
  }
  std::ranges::reverse(kinds);
  return kinds;
}

}  // namespace

BatchKinds::BatchKinds(const std::vector<BatchSize>& expected, int64_t max_tokens) : max_tokens_(max_tokens) {
  std::map<int64_t, Histogram> by_length;
  std::map<int64_t, int64_t> steps;
  int64_t all_rows = 0;
  for (const BatchSize& size : expected) {
    const int64_t length = rounded_length(size.longest),
                  rows = size.rows < kLarge ? at::round_up(size.rows, kRowMultiple) : size.rows;
    ++by_length[length][rows];
    ++steps[length];
    all_rows += rows;
  }
  for (auto at = by_length.begin(); at != by_length.end(); ++at) {
    const auto next = std::next(at);
    if (next != by_length.end() &&
        static_cast<double>(steps[at->first]) < kWorthALength * static_cast<double>(expected.size())) {
      instead_[at->first] = next->first;
      steps[next->first] += steps[at->first];
      for (const auto& [rows, count] : at->second) {
        next->second[rows] += count;
      }
    } else {
      rows_[at->first] = best_kinds(at->second, kWorthAKind * static_cast<double>(all_rows));
    }
  }
}

int64_t BatchKinds::rounded_length(int64_t tokens) const {
  return std::min(std::max(kShortest, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(tokens)))), max_tokens_);
}

BatchSize BatchKinds::round_up(BatchSize size) const {
  int64_t length = rounded_length(size.longest);
  for (auto other = instead_.find(length); other != instead_.end(); other = instead_.find(length)) {
    length = other->second;
  }
  if (const auto kinds = rows_.find(length); kinds != rows_.end()) {
    if (const auto rows = std::ranges::lower_bound(kinds->second, size.rows); rows != kinds->second.end()) {
      return {*rows, length};
    }
  }
  return {rounded_rows(size.rows), length};
}

}  // namespace mezzo::text
