#include "text/models/activation_names.h"

namespace mezzo::text {

encoder::Activation parse_activation(std::string_view name) {
  return name == "gelu"   ? encoder::Activation::kGelu
         : name == "relu" ? encoder::Activation::kRelu
                          : encoder::Activation::kGeluTanh;
}

const std::vector<std::string_view>& activation_names() {
  static const std::vector<std::string_view> kNames = {"gelu", "gelu_new", "gelu_pytorch_tanh", "relu"};
  return kNames;
}

}  // namespace mezzo::text
