#pragma once

#include <c10/util/Exception.h>

#include <functional>
#include <string>

namespace mezzo {

/// The message of the c10::ValueError that `call` throws, or "none".
inline std::string value_error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "none";
}

}  // namespace mezzo
