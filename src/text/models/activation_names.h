#pragma once

#include <string_view>
#include <vector>

#include "encoder/activation.h"

namespace mezzo::text {

/// "gelu", "gelu_new", "gelu_pytorch_tanh" or "relu", as config.json has them.
encoder::Activation parse_activation(std::string_view name);
const std::vector<std::string_view>& activation_names();

}  // namespace mezzo::text
