#pragma once

#include <iomanip>
#include <iostream>
#include <vector>

/// One line for programs to read: "RESULT losses 1.5 0.25 …", with every digit of a float.
inline void print_result(const char* name, const std::vector<double>& values) {
  std::cout << "RESULT " << name << std::setprecision(9);
  for (const double value : values) {
    std::cout << ' ' << value;
  }
  std::cout << '\n';
}
