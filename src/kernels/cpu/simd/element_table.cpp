#include <type_traits>

#include "kernels/cpu/simd/element_kernels.h"

namespace mezzo::kernels::cpu::MEZZO_SIMD {

// Functions of the table's types, which the files of this folder define.
#define MEZZO_DECLARE(name) std::remove_pointer_t<decltype(ElementKernels::name)> name;
MEZZO_FOR_ELEMENT_KERNELS(MEZZO_DECLARE)
#undef MEZZO_DECLARE

#define MEZZO_ENTRY(name) .name = name,
extern const ElementKernels element_table = {MEZZO_FOR_ELEMENT_KERNELS(MEZZO_ENTRY)};
#undef MEZZO_ENTRY

}  // namespace mezzo::kernels::cpu::MEZZO_SIMD
