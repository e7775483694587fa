#pragma once

#include <c10/util/Exception.h>
#include <torch/custom_class.h>

#include <string>

namespace mezzo::encoder {

/// The type of the class torch.classes.mezzo.NAME in schemas.
/// @param define  registers it; not called if another copy of mezzo in this process has done so
template <class Define>
std::string registered_class(const std::string& name, const Define& define) {
  const std::string full = "__torch__.torch.classes.mezzo." + name;
  try {
    if (!torch::getCustomClass(full)) {
      define(name);
    }
  } catch (const c10::Error&) {  // registering an operator with it will report the missing type
  }
  return full;
}

}  // namespace mezzo::encoder
