#include <type_traits>

#include "kernels/cpu/simd/element_kernels.h"

namespace mezzo::kernels::cpu::MEZZO_SIMD {

// Functions of the table's types, which the files of this folder define.
template <class Pointer>
using Function = std::remove_pointer_t<Pointer>;
Function<decltype(ElementKernels::to_float)> to_float;
Function<decltype(ElementKernels::from_float)> from_float;
Function<decltype(ElementKernels::round_stochastically)> round_stochastically;
Function<decltype(ElementKernels::dropout)> dropout;
Function<decltype(ElementKernels::adam)> adam;
Function<decltype(ElementKernels::sgd)> sgd;
Function<decltype(ElementKernels::rmsprop)> rmsprop;
Function<decltype(ElementKernels::lamb_moments)> lamb_moments;
Function<decltype(ElementKernels::lamb_norms)> lamb_norms;
Function<decltype(ElementKernels::lamb_params)> lamb_params;
Function<decltype(ElementKernels::sum_of_squares)> sum_of_squares;
Function<decltype(ElementKernels::add)> add;

extern const ElementKernels element_table = {.to_float = to_float,
                                             .from_float = from_float,
                                             .round_stochastically = round_stochastically,
                                             .dropout = dropout,
                                             .adam = adam,
                                             .sgd = sgd,
                                             .rmsprop = rmsprop,
                                             .lamb_moments = lamb_moments,
                                             .lamb_norms = lamb_norms,
                                             .lamb_params = lamb_params,
                                             .sum_of_squares = sum_of_squares,
                                             .add = add};

}  // namespace mezzo::kernels::cpu::MEZZO_SIMD
