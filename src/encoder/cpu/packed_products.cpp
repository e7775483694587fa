#include "encoder/cpu/packed_products.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "encoder/cpu/row_blocks.h"
#include "encoder/cpu/simd/kernels.h"
#include "kernels/cpu/share_out.h"
#include "kernels/cpu/tensor_spans.h"
#include "kernels/dtypes.h"

namespace mezzo::encoder::cpu {

using kernels::cpu::read_span;
using kernels::cpu::share_out;
using kernels::cpu::write_span;
namespace {

constexpr int64_t kFewestRows = 64;    // fewer do not pay for packing what they are multiplied by
constexpr int64_t kPanelsOfATask = 4;  // packed by one task

/// MKL and oneDNN multiply best on the processors of their maker what those have instructions for.
bool is_fast_in_libtorch([[maybe_unused]] at::ScalarType dtype) {
#ifdef __x86_64__
  return __builtin_cpu_is("intel") &&
         (dtype == at::kFloat || (dtype == at::kBFloat16 && __builtin_cpu_supports("avx512bf16")));
#else
  return true;
#endif
}

bool is_readable(const at::Tensor& matrix) { return matrix.stride(0) == 1 || matrix.stride(1) == 1; }

MatrixView view(const at::Tensor& matrix) { return {read_span(matrix), matrix.stride(0), matrix.stride(1)}; }

/// The matrices that stand on the right, each once, in the order in which kernels read them.
class PackedMatrices {
 public:
  explicit PackedMatrices(const ProductKernels& kernels) : kernels_(kernels), width_(kernels.panel_columns) {}

  /// Its number.
  size_t add(const at::Tensor& matrix) {
    const auto same = std::find_if(matrices_.begin(), matrices_.end(), [&](const Matrix& other) {
      return other.tensor.const_data_ptr() == matrix.const_data_ptr() && other.tensor.sizes() == matrix.sizes() &&
             other.tensor.strides() == matrix.strides();
    });
    if (same != matrices_.end()) {
      return same - matrices_.begin();
    }
    const int64_t columns = matrix.size(1);
    for (int64_t begin = 0; begin < columns; begin += kPanelsOfATask * width_) {
      tasks_.push_back({matrices_.size(), begin, std::min(columns, begin + kPanelsOfATask * width_)});
    }
    matrices_.push_back({matrix, size_, kernels_.panel_rows(read_span(matrix).element, matrix.size(0))});
    size_ += (columns + width_ - 1) / width_ * width_ * matrices_.back().panel_rows;
    return matrices_.size() - 1;
  }

  /// Once, after all of them.
  void pack() {
    memory_ = at::empty({size_}, at::kFloat);
    share_out(static_cast<int64_t>(tasks_.size()), [&](const auto& next) {
      for (int64_t i = next(); i >= 0; i = next()) {
        const auto& [number, begin, end] = tasks_[i];
        const auto& [tensor, place, panel_rows] = matrices_[number];
        kernels_.pack_panels(view(tensor), begin, end - begin, tensor.size(0),
                             memory_.mutable_data_ptr<float>() + place + begin * panel_rows);
      }
    });
  }

  const float* operator[](size_t number) const { return memory_.const_data_ptr<float>() + matrices_[number].place; }

 private:
  struct Matrix {
    at::Tensor tensor;
    int64_t place;  // of its panels in memory_
    int64_t panel_rows;
  };
  struct Columns {
    size_t number;
    int64_t begin, end;
  };

  const ProductKernels& kernels_;
  const int64_t width_;
  std::vector<Matrix> matrices_;
  std::vector<Columns> tasks_;
  int64_t size_ = 0;
  at::Tensor memory_;
};

}  // namespace

bool can_be_packed(const ProductSum& sum) {
  const auto dtype = sum.terms.front().first.scalar_type();
  return simd_kernels().products != nullptr && has_kernel(dtype) && !is_fast_in_libtorch(dtype) &&
         sum.output.size(0) >= kFewestRows && sum.output.is_contiguous() &&
         std::all_of(sum.terms.begin(), sum.terms.end(),
                     [](const auto& term) { return is_readable(term.first) && is_readable(term.second); });
}

void compute_packed(std::span<const ProductSum> sums) {
  const ProductKernels& kernels = *simd_kernels().products;
  PackedMatrices packed(kernels);
  std::vector<std::vector<size_t>> numbers;
  for (const auto& sum : sums) {
    auto& of_sum = numbers.emplace_back();
    for (const auto& [left, right] : sum.terms) {
      of_sum.push_back(packed.add(right));
    }
  }
  packed.pack();

  std::vector<std::vector<ProductTerm>> terms;
  std::vector<ProductRows> outputs;
  int64_t scratch_size = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    auto& of_sum = terms.emplace_back();
    for (size_t t = 0; t < sums[i].terms.size(); ++t) {
      const auto& left = sums[i].terms[t].first;
      of_sum.push_back({view(left), packed[numbers[i][t]], left.size(1)});
    }
    const auto& output = sums[i].output;
    outputs.push_back(
        {of_sum.data(), static_cast<int64_t>(of_sum.size()), output.size(1), write_span(output), sums[i].adds});
    scratch_size = std::max(scratch_size, kernels.scratch(output.size(1)));
  }
  const auto tasks = row_blocks(sums, kernels.tile_rows);
  share_out(tasks.ends, [&](const auto& next) {
    const auto scratch = at::empty({scratch_size}, at::kFloat);
    for (int64_t i = next(); i >= 0; i = next()) {
      const auto& [sum, begin, end] = tasks.blocks[i];
      kernels.rows(outputs[sum], begin, end, scratch.mutable_data_ptr<float>());
    }
  });
}

}  // namespace mezzo::encoder::cpu
