#include "encoder/cpu/products.h"

#include <ATen/ceil_div.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <numeric>

#include "encoder/cpu/int8_products.h"
#include "encoder/cpu/packed_products.h"
#include "encoder/cpu/widened_product.h"
#include "kernels/cpu/share_out.h"

namespace mezzo::encoder::cpu {

using kernels::cpu::share_out;
namespace {

constexpr int64_t kShortestPiece = 128;  // shorter pieces spend their time on rearranging the shared factor
constexpr int64_t kAlignment = 16;       // of the places where outputs are split
constexpr double kBalanced = 1.1;        // pieces cost more than a thread that works a tenth longer than the mean

/// Piece `i` of `count`, split along the longer side of the output.
void compute_piece(const ProductSum& sum, int64_t i, int64_t count) {
  const at::Tensor& output = sum.output;
  const int64_t dim = output.size(1) > output.size(0) ? 1 : 0, size = output.size(dim);
  const auto edge = [&](int64_t piece) { return std::min(size, at::round_up(size * piece / count, kAlignment)); };
  const int64_t begin = edge(i), length = (i + 1 == count ? size : edge(i + 1)) - begin;
  auto part = output.narrow(dim, begin, length);
  bool is_empty = !sum.adds;
  for (const auto& [a, b] : sum.terms) {
    const auto left = dim == 0 ? a.narrow(0, begin, length) : a, right = dim == 1 ? b.narrow(1, begin, length) : b;
    if (part.scalar_type() != left.scalar_type()) {
      widened_product(part, left, right, /*adds=*/!is_empty);
    } else if (is_empty) {
      at::mm_out(part, left, right);
    } else {
      at::addmm_out(part, part, left, right);
    }
    is_empty = false;
  }
}

/// 1 if whole products keep all threads equally busy, else the number of threads; 0 if that is too many.
int64_t pieces_of_each(std::span<const ProductSum> sums, int64_t threads) {
  // Largest first, as they are in `sums`; each to the thread that is done first.
  std::vector<double> busy(threads);
  for (const auto& sum : sums) {
    *std::min_element(busy.begin(), busy.end()) += sum.operations();
  }
  const double all = std::accumulate(busy.begin(), busy.end(), 0.0),
               slowest = *std::max_element(busy.begin(), busy.end());
  if (slowest * static_cast<double>(threads) <= kBalanced * all) {
    return 1;
  }
  const bool can_split = std::all_of(sums.begin(), sums.end(), [&](const ProductSum& sum) {
    return std::max(sum.output.size(0), sum.output.size(1)) >= threads * kShortestPiece;
  });
  return can_split ? threads : 0;
}

void compute_with_libtorch(std::span<const ProductSum> sums) {
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads(), pieces = pieces_of_each(sums, threads);
  if (threads == 1 || pieces == 0) {
    for (const auto& sum : sums) {
      compute_piece(sum, 0, 1);
    }
  } else {
    share_out(static_cast<int64_t>(sums.size()) * pieces, [&](const auto& next) {
      const at::AutoDispatchBelowADInplaceOrView on_this_thread;
      for (int64_t i = next(); i >= 0; i = next()) {
        compute_piece(sums[i / pieces], i % pieces, pieces);
      }
    });
  }
}

}  // namespace

at::Tensor Products::add(const at::Tensor& a, const at::Tensor& b, std::optional<at::ScalarType> dtype) {
  sums_.push_back(
      {at::empty({a.size(0), b.size(1)}, a.options().dtype(dtype.value_or(a.scalar_type()))), {{a, b}}, false});
  return sums_.back().output;
}

void Products::assign(const at::Tensor& output, const at::Tensor& a, const at::Tensor& b) {
  sums_.push_back({output, {{a, b}}, false});
}

void Products::add_to(const at::Tensor& total, const at::Tensor& a, const at::Tensor& b) {
  const auto same =
      std::find_if(sums_.begin(), sums_.end(), [&](const ProductSum& sum) { return sum.output.is_same(total); });
  if (same != sums_.end()) {
    same->terms.emplace_back(a, b);
  } else {
    sums_.push_back({total, {{a, b}}, true});
  }
}

void Products::compute() {
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  std::stable_sort(sums_.begin(), sums_.end(),
                   [](const ProductSum& a, const ProductSum& b) { return a.operations() > b.operations(); });
  const auto floats = std::stable_partition(sums_.begin(), sums_.end(), is_int8);
  const auto others = std::stable_partition(floats, sums_.end(), can_be_packed);
  if (floats != sums_.begin()) {
    compute_int8({sums_.begin(), floats});
  }
  if (others != floats) {
    compute_packed({floats, others});
  }
  if (others != sums_.end()) {
    compute_with_libtorch({others, sums_.end()});
  }
}

}  // namespace mezzo::encoder::cpu
