#pragma once

#include <mezzo/optim/named_parameter.h>
#include <torch/nn/module.h>

#include <iomanip>
#include <iostream>
#include <vector>

/// The parameters as mezzo's optimizers take them.
inline std::vector<mezzo::NamedParameter> named_parameters(const torch::nn::Module& module) {
  std::vector<mezzo::NamedParameter> parameters;
  for (const auto& parameter : module.named_parameters()) {
    parameters.push_back({parameter.key(), parameter.value()});
  }
  return parameters;
}

/// One line for programs to read: "RESULT losses 1.5 0.25 …", with every digit of a float.
inline void print_result(const char* name, const std::vector<double>& values) {
  std::cout << "RESULT " << name << std::setprecision(9);
  for (const double value : values) {
    std::cout << ' ' << value;
  }
  std::cout << '\n';
}
