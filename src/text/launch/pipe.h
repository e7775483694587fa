#pragma once

#include "system/unique_fd.h"

namespace mezzo::text {

struct Pipe {
  UniqueFd read, write;
};

/// A pipe whose ends are closed on exec. @throws c10::Error
Pipe make_pipe();

void set_nonblocking(int fd);

}  // namespace mezzo::text
