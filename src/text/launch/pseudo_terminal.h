#pragma once

#include <cstdint>

#include "system/unique_fd.h"

namespace mezzo::text {

/// A terminal to hand to a program, and the side that reads the program's output, unchanged.
struct PseudoTerminal {
  UniqueFd reader, terminal;
};

/// @throws c10::Error
PseudoTerminal open_pseudo_terminal();

/// Makes the terminal read by `reader` as large as the terminal `model`, less some columns.
void copy_terminal_size(int model, int reader, int64_t fewer_columns);

}  // namespace mezzo::text
