#include "encoder/cpu/packed_products.h"

#include <ATen/ceil_div.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "encoder/cpu/kept_behind.h"
#include "encoder/cpu/product_blocks.h"
#include "encoder/cpu/simd/kernels.h"
#include "encoder/packed_weights.h"
#include "kernels/cpu/share_out.h"
#include "kernels/cpu/simd/instruction_set.h"
#include "kernels/cpu/tensor_spans.h"
#include "kernels/dtypes.h"

namespace mezzo::encoder::cpu {

using kernels::cpu::read_span;
using kernels::cpu::share_out;
using kernels::cpu::write_span;
namespace {

constexpr int64_t kFewestRows = 64;    // with fewer rows, packing the other factor costs more than it saves
constexpr int64_t kPanelsOfATask = 4;  // packed by one task

bool is_readable(const at::Tensor& matrix) { return matrix.stride(0) == 1 || matrix.stride(1) == 1; }

MatrixView view(const at::Tensor& matrix) { return {read_span(matrix), matrix.stride(0), matrix.stride(1)}; }

/// What lies behind the memory of a packed_weight().
struct PackedWeight {
  at::Tensor values;  ///< [out, in], in that memory
  at::Tensor panels;  ///< of their transpose
};

/// The panels of a matrix that is all of a packed_weight(), transposed; or nullptr.
const float* kept_panels(const at::Tensor& matrix) {
  const auto* weight = kept_behind_transposed<PackedWeight>(matrix);
  return weight != nullptr ? weight->panels.const_data_ptr<float>() : nullptr;
}

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
    if (const float* kept = kept_panels(matrix)) {
      matrices_.push_back({matrix, kept, 0, 0});
      return matrices_.size() - 1;
    }
    const int64_t columns = matrix.size(1);
    for (int64_t begin = 0; begin < columns; begin += kPanelsOfATask * width_) {
      tasks_.push_back({matrices_.size(), begin, std::min(columns, begin + kPanelsOfATask * width_)});
    }
    matrices_.push_back({matrix, nullptr, size_, kernels_.panel_rows(read_span(matrix).element, matrix.size(0))});
    size_ += at::round_up(columns, width_) * matrices_.back().panel_rows;
    return matrices_.size() - 1;
  }

  /// Once, after all of them.
  void pack() {
    memory_ = at::empty({size_}, at::kFloat);
    share_out(static_cast<int64_t>(tasks_.size()), [&](const auto& next) {
      for (int64_t i = next(); i >= 0; i = next()) {
        const auto& [number, begin, end] = tasks_[i];
        const auto& [tensor, kept, place, panel_rows] = matrices_[number];
        kernels_.pack_panels(view(tensor), begin, end - begin, tensor.size(0),
                             memory_.mutable_data_ptr<float>() + place + begin * panel_rows);
      }
    });
  }

  const float* operator[](size_t number) const {
    const Matrix& matrix = matrices_[number];
    return matrix.kept != nullptr ? matrix.kept : memory_.const_data_ptr<float>() + matrix.place;
  }

  /// Of all, once they are packed.
  const at::Tensor& memory() const { return memory_; }

 private:
  struct Matrix {
    at::Tensor tensor;
    const float* kept;  // its panels, if they are somewhere else
    int64_t place;      // of its panels in memory_
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

bool are_ours(at::ScalarType dtype) {
  return simd_kernels().products != nullptr && has_kernel(dtype) && !is_fast_in_libtorch(dtype);
}

}  // namespace

bool is_fast_in_libtorch([[maybe_unused]] at::ScalarType dtype) {
#ifdef __x86_64__
  const bool uses_amx = kernels::cpu::instruction_set() == kernels::cpu::InstructionSet::kAvx512Amx;
  return __builtin_cpu_is("intel") &&
         (dtype == at::kFloat || (dtype == at::kBFloat16 && __builtin_cpu_supports("avx512bf16") && !uses_amx));
#else
  return true;
#endif
}

bool can_be_packed(const ProductSum& sum) {
  const auto dtype = sum.terms.front().first.scalar_type();
  // LibTorch has no fast product of half types as float32.
  const bool pays =
      sum.output.size(0) >= kFewestRows || sum.output.scalar_type() != dtype ||
      std::ranges::all_of(sum.terms, [](const auto& term) { return kept_panels(term.second) != nullptr; });
  return are_ours(dtype) && pays && sum.output.is_contiguous() &&
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
    outputs.push_back({of_sum.data(), static_cast<int64_t>(of_sum.size()), 0, output.size(1), output.size(1),
                       write_span(output), sums[i].adds});
    scratch_size = std::max(scratch_size, kernels.scratch(output.size(1)));
  }
  const auto tasks = product_blocks(sums, kernels.tile_rows, kernels.panel_columns);
  share_out(tasks.ends, [&](const auto& next) {
    const auto scratch = at::empty({scratch_size}, at::kFloat);
    for (int64_t i = next(); i >= 0; i = next()) {
      const auto& [sum, begin, end, first_column, columns] = tasks.blocks[i];
      ProductRows rows = outputs[sum];
      rows.first_column = first_column;
      rows.columns = columns;
      kernels.rows(rows, begin, end, scratch.mutable_data_ptr<float>());
    }
  });
}

}  // namespace mezzo::encoder::cpu

namespace mezzo::encoder {

at::Tensor packed_weight(const at::Tensor& weight, at::ScalarType dtype) {
  const auto values = weight.detach().to(dtype).contiguous();
  if (!values.is_cpu() || !cpu::are_ours(dtype)) {
    return values;
  }
  cpu::PackedMatrices packed(*cpu::simd_kernels().products);
  packed.add(values.t());
  packed.pack();
  return cpu::keep_behind(cpu::PackedWeight{values, packed.memory()});
}

bool is_packed_weight(const at::Tensor& weight) { return cpu::kept_behind<cpu::PackedWeight>(weight) != nullptr; }

}  // namespace mezzo::encoder
