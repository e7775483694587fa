#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <memory>
#include <utility>

/// A matrix with values computed from it once, kept as long as the matrix's memory. `Kept` has a member `values`, the
/// matrix in the memory that it was made in.
namespace mezzo::encoder::cpu {

template <class Kept>
void delete_kept(void* kept) {
  delete static_cast<Kept*>(kept);
}

/// kept.values as a tensor whose memory owns `kept`.
template <class Kept>
at::Tensor keep_behind(Kept kept) {
  const at::Tensor values = kept.values;
  auto owned = std::make_unique<Kept>(std::move(kept));
  at::DataPtr memory(values.mutable_data_ptr(), owned.get(), &delete_kept<Kept>, values.device());
  owned.release();  // NOLINT: the memory owns it now
  const c10::Storage storage(c10::Storage::use_byte_size_t(), values.nbytes(), std::move(memory));
  return at::empty({0}, values.options()).set_(storage, 0, values.sizes(), values.strides());
}

/// The values kept behind the memory of `tensor`, or behind the tensor that it is a view of; or nullptr.
template <class Kept>
const Kept* kept_behind(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().data_ptr().cast_context<Kept>(&delete_kept<Kept>) : nullptr;
}

/// The same, if `matrix` is all of values, transposed; or nullptr.
template <class Kept>
const Kept* kept_behind_transposed(const at::Tensor& matrix) {
  const Kept* kept = kept_behind<Kept>(matrix);
  const bool is_all = kept != nullptr && matrix.dim() == 2 && matrix.stride(0) == 1 &&
                      matrix.stride(1) == matrix.size(0) && matrix.numel() == kept->values.numel() &&
                      matrix.size(0) == kept->values.size(1) &&
                      matrix.const_data_ptr() == kept->values.const_data_ptr();
  return is_all ? kept : nullptr;
}

}  // namespace mezzo::encoder::cpu
