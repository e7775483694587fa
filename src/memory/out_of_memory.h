#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <new>

namespace mezzo {

/// Whether memory ran out: that of a device, of tensors on the CPU, or of C++.
inline bool is_out_of_memory(const std::exception& error) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
}

}  // namespace mezzo
